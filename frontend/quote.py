"""What a quote is asked for: a request described by its sizes, or by its prompt, that is priced and not run."""

from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from common.errors import InvalidRequest, ModelNotFound, NeverFits
from common.wire import LlamaLimits, UnetLimits
from estimator import unet
from estimator.price import Price
from frontend.forms import Form
from frontend.openai_forms import Message
from frontend.sampling_form import INT64, SamplingForm

RGB_BYTES = 3


class TextQuote(SamplingForm):
    """A text request: its prompt, its messages, or only how many tokens they have."""

    model: Literal["llama"]
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, fail_fast=True)
    prompt_tokens: int | None = Field(None, ge=1, lt=INT64)

    @model_validator(mode="after")
    def _check_prompt(self) -> "TextQuote":
        if [self.prompt, self.messages, self.prompt_tokens].count(None) != 2:
            raise ValueError("give one of prompt, messages and prompt_tokens")
        return self

    def stand_ins(self, limits: LlamaLimits) -> tuple[int, ...]:
        """As many token ids as `prompt_tokens` says; raises InvalidRequest for more than the context has."""
        tokens = self.prompt_tokens or 0
        if tokens > limits.context_tokens:
            text = f"prompt_tokens: {tokens:,} are more than the context of {limits.context_tokens:,}"
            numbers = {"prompt_tokens": tokens, "context_tokens": limits.context_tokens}
            raise InvalidRequest(text, param="prompt_tokens", numbers=numbers)
        return (0,) * tokens


class ImageQuote(Form):
    """An image request by its size."""

    model: Literal["unet"]
    height: int = Field(ge=1, lt=INT64)
    width: int = Field(ge=1, lt=INT64)
    format: Literal["raw", "png", "jpeg", "tiff"] = "raw"
    """How the image would be sent; ``raw`` is a tensor."""
    encoded_bytes: int | None = Field(None, ge=1, lt=INT64)
    """Size of the file; None is that of the pixels, 3 bytes each."""
    probabilities: bool = False
    """Whether the class probabilities are wanted beside the mask."""

    @model_validator(mode="after")
    def _check_file(self) -> "ImageQuote":
        if self.format == "raw" and self.encoded_bytes is not None:
            raise ValueError("encoded_bytes is for an image in a file: name its format")
        return self

    def price(self, limits: UnetLimits) -> Price:
        """What the image would be charged; raises NeverFits for one that would not be decoded."""
        pixels = self.height * self.width
        if pixels > limits.max_pixels:
            raise NeverFits(
                f"the image has {self.width} x {self.height} = {pixels} pixels, accepted are {limits.max_pixels}",
                param="height",
                numbers={"pixels": pixels, "max_pixels": limits.max_pixels},
            )
        file_bytes = 0 if self.format == "raw" else self.encoded_bytes or RGB_BYTES * pixels
        return unet.price_request(limits, self.height, self.width, file_bytes, self.probabilities)


class AnyQuote(Form):
    """What both have in common, to tell them apart."""

    model_config = ConfigDict(extra="allow")

    model: str

    def form(self) -> type[TextQuote] | type[ImageQuote]:
        """How the whole is to be read; raises ModelNotFound."""
        forms: dict[str, type[TextQuote] | type[ImageQuote]] = {"llama": TextQuote, "unet": ImageQuote}
        if self.model not in forms:
            raise ModelNotFound(f"no such model; there is {' and '.join(forms)}", param="model")
        return forms[self.model]
