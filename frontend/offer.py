"""What a model would hold and what its requests would cost on a card, asked of the estimator alone: no service runs."""

from dataclasses import dataclass

from common.errors import SettingsError
from common.settings import Settings
from common.wire import LlamaLimits
from estimator import cards, grants, llama, profile
from estimator.cards import Card
from estimator.llama import LlamaShape
from estimator.plain import Call, GenerateLaw, path_of, price_of
from estimator.price import Price
from frontend import plan


@dataclass(frozen=True)
class Offer:
    """An engine that could be loaded."""

    card: Card
    equation: str
    standing: Price
    limits: LlamaLimits
    request: Price | None
    """Of the request that was asked about."""

    @property
    def at_once(self) -> int:
        """Such requests that fit beside one another; 0 where one is more than all pages."""
        capacity_bytes = self.limits.pages * self.limits.page_bytes
        return capacity_bytes // self.request.total_bytes if self.request else 0


@dataclass(frozen=True)
class PlainOffer:
    """One call of a plain transformers model, on the account ``card``."""

    price: Price
    bound_bytes: int | None
    """The most that its reserved memory grows by; None where no shipped profile was measured for it."""
    measured_on: str
    """What the bound was measured on, or why there is none."""


def of_engine(settings: Settings, shape: LlamaShape, card: str, request: tuple[int, int, int] | None) -> Offer:
    """The engine as `settings` size it on a card by name or size, beside the segmentation engine.

    `request` is prompt tokens, output tokens, and how many answers. Raises SettingsError where nothing fits.
    """
    known, conf = cards.named(card), settings.llama
    limits = plan.limits_on(settings, shape, known)
    divided = grants.divide(settings, "cuda", known.total_bytes, known.reserved_bytes)
    sizes = (conf.page_tokens, limits.pages, conf.step_tokens, conf.max_batch, "cuda")
    standing = llama.standing(shape, conf.dtype_on("cuda"), *sizes)
    price = llama.price_request(limits, *request) if request else None
    return Offer(known, divided.explain(), standing, limits, price)


def of_plain(shape: LlamaShape, dtype: str, call: Call) -> PlainOffer:
    """One ``generate``, with the bound of a shipped profile where there is one of this shape and dtype."""
    peak = GenerateLaw(shape, dtype).peak(call)
    for known in profile.shipped().values():
        if (known.shape, known.setup.dtype) == (shape, dtype):
            setup, path = known.setup, path_of(call, peak)
            on = f"{setup.card}, torch {setup.torch}, transformers {setup.transformers}, {setup.allocator}"
            return PlainOffer(price_of(peak), known.bound_bytes(peak, path), f"{on}; path {path!r}")
    return PlainOffer(price_of(peak), None, "no profile of this shape is shipped: run vramgate calibrate on the card")


def call_of(batch: int, prompt_tokens: int | None, new_tokens: int | None, padded: bool) -> Call:
    """The call that was described; raises SettingsError for one without sizes."""
    if prompt_tokens is None or new_tokens is None:
        raise SettingsError("quote --plain: give --prompt-tokens and --max-tokens")
    return Call(batch, prompt_tokens, new_tokens, padded)
