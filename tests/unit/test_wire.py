import pytest

from common.errors import InvalidRequest
from common.wire import ActiveLease, Breaker, Control, EngineStatus, Lease, LlamaLimits, Op, Statement

LEASE = Lease(id="a1", lines={"llama.pages": 512, "host": 3}, deadline_s=29.5, max_tokens=16)
STATUS = EngineStatus(
    model="llama",
    boot_id="b",
    ready=True,
    reason="",
    device="cpu",
    standing={"weights": 10},
    account="llama.pages",
    capacity_bytes=1024,
    used_bytes=512,
    unleased_bytes=0,
    leases=(ActiveLease("a1", 512),),
    pool_keys=("llama/fp32",),
    breaker=Breaker.CLOSED,
    headroom_bytes=None,
    fragmentation_ratio=0.0,
    llama=LlamaLimits(8192, 49152, 256, 512, 2, "/models/x"),
)


@pytest.mark.parametrize("value", [LEASE, STATUS, Statement("a1", "llama", 1, 2, 3), Control(Op.CANCEL, "a1")])
def test_json_gives_the_value_back(value: Lease | EngineStatus | Statement | Control) -> None:
    assert type(value).from_json(value.to_json()) == value


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ('{"id": "a", "lines": {}, "deadline_s": 1, "colour": 2}', "colour"),
        ('{"id": "a", "lines": {}}', "deadline_s"),
        ('{"id": 7, "lines": {}, "deadline_s": 1}', "id"),
        ('{"id": "a", "lines": {"host": "9"}, "deadline_s": 1}', "lines.host"),
        ("not json", "lease"),
    ],
)
def test_a_malformed_lease_is_refused_by_the_name_of_its_key(text: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Lease.from_json(text)
    assert caught.value.param == param


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="op"):
        Control.from_json('{"op": "explode"}')
