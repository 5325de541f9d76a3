"""What jobs cost, and whether the prices hold."""

import logging
import math
from collections import defaultdict

from common.wire import LLAMA_PAGES, UNET_CANVAS, Statement
from estimator import llama, unet
from estimator.drift import Drift
from estimator.price import Line, Price
from frontend.engines import Engines
from frontend.metrics import Metrics
from frontend.runs import ImageJob, TextJob

LOG = logging.getLogger(__name__)

_ACCOUNTS = {"llama": LLAMA_PAGES, "unet": UNET_CANVAS}
"""Model -> the account that its statements speak of."""
_DRIFT = "drift: "


class Prices:
    """Prices by the estimator's laws, widened for as long as statements say that one of them was exceeded."""

    def __init__(self, engines: Engines, metrics: Metrics) -> None:
        self._engines = engines
        self._metrics = metrics
        self._drifts: dict[str, Drift] = defaultdict(Drift)

    def text(self, job: TextJob) -> Price:
        """What the job will add while it runs; raises NotReady while the engine has not said what a page costs."""
        limits = self._engines.llama_limits()
        return self.widened("llama", llama.price_request(limits, len(job.prompt_ids), job.max_tokens, job.n))

    def image(self, job: ImageJob) -> Price:
        """What the job will add while it runs; raises NotReady while the engine has not said how it tiles."""
        sizes = (job.height, job.width, len(job.encoded or b""), job.probabilities)
        return self.widened("unet", unet.price_request(self._engines.unet_limits(), *sizes))

    def widened(self, model: str, price: Price) -> Price:
        """The price with a line for the drift of its law, where there is any."""
        drift, account = self._drifts[model], _ACCOUNTS[model]
        extra_bytes = math.ceil(price.by_account().get(account, 0) * (drift.widened - 1))
        why = f"{_DRIFT}work used up to {drift.worst:.3f} times its price, so {drift.widened:.3f} times is asked"
        return price + Price.of([Line(account, extra_bytes, why)])

    def drift(self, model: str) -> Drift:
        """How the prices of a model hold."""
        return self._drifts[model]

    def settled(self, price: Price, statement: Statement) -> None:
        """A piece of work that was asked `price` has ended with a statement."""
        self._metrics.settled(statement)
        before = self._drifts[statement.model]
        extra_bytes = sum(line.bytes for line in price.lines if line.why.startswith(_DRIFT))
        drift = before.observe(statement.held_bytes, statement.quoted_bytes - extra_bytes)
        self._drifts[statement.model] = drift
        self._metrics.observe_widened(statement.model, drift.widened)
        if drift.warns(before):
            LOG.warning(
                "%s: work held %d B, its price was %d B; prices are widened to %.3f times until they hold again",
                statement.model,
                statement.held_bytes,
                statement.quoted_bytes - extra_bytes,
                drift.widened,
            )
