"""What a card can serve: its pages, and a trace replayed on them through the real admission."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import SettingsError
from common.settings import Settings
from common.wire import LlamaLimits
from estimator import grants, llama, shapes
from estimator.cards import Card
from estimator.llama import LlamaShape
from frontend.admission import Admission
from frontend.engine_model import Rates
from frontend.simulation import Outcome, Simulation
from frontend.trace import Request


@dataclass(frozen=True)
class Plan:
    """A card with what became of the trace on it."""

    card: Card
    limits: LlamaLimits
    llama_bytes: int
    """The language model's grant."""
    tile_slots: int
    """Image tiles in one pass of the segmentation model beside it."""
    outcomes: list[Outcome]

    @property
    def at_once_share(self) -> float:
        """Requests that got their bytes in the moment they came."""
        return self._share([outcome for outcome in self.outcomes if outcome.waited_s == 0])

    @property
    def in_time_share(self) -> float:
        """Requests that ended before their deadline."""
        return self._share([outcome for outcome in self.outcomes if outcome.in_time])

    def refused_share(self, *reasons: str) -> float:
        """Requests that were refused for one of these reasons."""
        return self._share([outcome for outcome in self.outcomes if outcome.refused in reasons])

    def waits_s(self) -> list[float]:
        """Of all that were served, the shortest first."""
        return sorted(outcome.waited_s for outcome in self.outcomes if outcome.waited_s is not None)

    @property
    def mean_price_bytes(self) -> float:
        """Of a request that fits at all."""
        prices = [outcome.price_bytes for outcome in self.outcomes if outcome.refused != "never_fits"]
        return sum(prices) / max(1, len(prices))

    def _share(self, found: Sequence[Outcome]) -> float:
        return len(found) / len(self.outcomes)


def shape_of(config: str) -> LlamaShape:
    """The model of that name, or of that config.json (or the folder with one); raises SettingsError."""
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        return shapes.named(config)
    try:
        return LlamaShape.from_config(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: no JSON: {error}") from None


def limits_on(settings: Settings, shape: LlamaShape, card: Card) -> LlamaLimits:
    """What the language model can lend on this card; raises SettingsError with the equation when nothing is left."""
    divided = grants.divide(settings, "cuda", card.total_bytes, card.reserved_bytes)
    conf, dtype = settings.llama, settings.llama.dtype_on("cuda")
    sizes = (conf.page_tokens, conf.step_tokens, conf.max_batch, "cuda")
    pages = conf.pages or llama.pages_in(divided.llama_bytes, shape, dtype, *sizes)
    if not pages:
        weights_bytes = llama.weights_bytes(shape, dtype)
        raise SettingsError(
            f"{card.name}: the weights take {weights_bytes:,} bytes and leave no page; {divided.explain()}"
        )
    return LlamaLimits(
        context_tokens=conf.context_tokens or shape.context_tokens,
        vocab_tokens=shape.vocab,
        page_tokens=conf.page_tokens,
        page_bytes=llama.page_bytes(shape, dtype, conf.page_tokens),
        pages=pages,
        tokenizer_dir="",
    )


def make(
    settings: Settings, shape: LlamaShape, card: Card, requests: Sequence[Request], rates: Rates, timeout_s: float
) -> Plan:
    """Replays the trace on this card; `timeout_s` is the deadline of every request."""
    limits = limits_on(settings, shape, card)
    simulation = Simulation(
        limits, rates, lambda ledger, clock: Admission(ledger, settings.admission, clock), timeout_s
    )
    divided = grants.divide(settings, "cuda", card.total_bytes, card.reserved_bytes)
    return Plan(card, limits, divided.llama_bytes, settings.unet.tile_batch, simulation.replay(requests))
