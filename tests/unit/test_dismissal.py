"""Who waits for an engine that is gone does not wait in vain."""

import pytest

from common.errors import NotReady
from tests.unit.gate import Gate, steps
from tests.unit.web import run


def test_those_in_line_for_a_lost_engine_are_told_at_once_and_the_others_stay() -> None:
    async def test() -> None:
        gate = Gate()
        lease = await gate.admit(pages=100, canvas=100)
        waiting = await gate.queue(pages=10)
        assert gate.admission.waiting == 1
        gate.admission.dismiss("unet", "unet is gone")
        await steps()
        assert not waiting.done()
        gate.admission.dismiss("llama", "llama is gone")
        with pytest.raises(NotReady, match="llama is gone"):
            await waiting
        gate.ledger.settle(lease.id)
        assert gate.idle()

    run(test)
