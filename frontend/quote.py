"""What a quote is asked for: a request described by its sizes, or by its prompt, that is priced and not run."""

import asyncio
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from common.errors import InvalidRequest, ModelNotFound, NeverFits
from common.settings import Llama as LlamaSettings
from common.tokenizer import Tokenizer
from common.wire import LlamaLimits, UnetLimits
from estimator import llama, unet
from estimator.price import Price
from frontend.forms import Form

RAW_CHANNELS = 3


class Message(Form):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class TextQuote(Form):
    """A text request: its prompt, its messages, or only how many tokens they have."""

    model: Literal["llama"]
    prompt: str | None = Field(None, min_length=1)
    messages: list[Message] | None = Field(None, min_length=1)
    prompt_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    """None is what is charged by default."""
    n: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _check_prompt(self) -> "TextQuote":
        if [self.prompt, self.messages, self.prompt_tokens].count(None) != 2:
            raise ValueError("give one of prompt, messages and prompt_tokens")
        return self

    async def count_tokens(self, tokenizer: Tokenizer) -> int:
        """Tokens of the prompt; in a thread, because a long one takes long. Raises InvalidRequest."""
        if self.messages is not None:
            text = tokenizer.chat([message.model_dump() for message in self.messages])
            return len(await asyncio.to_thread(tokenizer.encode, text, special=False))
        return len(await asyncio.to_thread(tokenizer.encode, self.prompt or ""))

    def price(self, prompt_tokens: int, limits: LlamaLimits, settings: LlamaSettings) -> Price:
        """Raises InvalidRequest for what the model would refuse."""
        room = limits.context_tokens - prompt_tokens
        if room < 1:
            text = f"the prompt has {prompt_tokens:,} tokens, the context {limits.context_tokens:,}"
            raise InvalidRequest(f"{text}, and the answer needs one at least", param="prompt")
        if self.n > settings.max_n:
            raise InvalidRequest(f"n: {self.n}, at most {settings.max_n} are served", param="n")
        max_tokens = min(settings.default_max_tokens, room) if self.max_tokens is None else self.max_tokens
        if max_tokens > room:
            text = f"max_tokens: {max_tokens:,}, and {prompt_tokens:,} prompt tokens leave {room:,}"
            raise InvalidRequest(f"{text} of {limits.context_tokens:,}", param="max_tokens")
        return llama.price_request(limits, prompt_tokens, max_tokens, self.n)


class ImageQuote(Form):
    """An image request by its size."""

    model: Literal["unet"]
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    format: Literal["raw", "png", "jpeg", "tiff"] = "raw"
    """How the image would be sent; ``raw`` is a tensor."""
    encoded_bytes: int | None = Field(None, ge=1)
    """Size of the file; None is that of the pixels, 3 bytes each."""
    probabilities: bool = False
    """Whether the class probabilities are wanted beside the mask."""

    @model_validator(mode="after")
    def _check_file(self) -> "ImageQuote":
        if self.format == "raw" and self.encoded_bytes is not None:
            raise ValueError("encoded_bytes is for an image in a file: name its format")
        return self

    def price(self, limits: UnetLimits) -> Price:
        """Raises NeverFits for an image that would not be decoded."""
        pixels = self.height * self.width
        if pixels > limits.max_pixels:
            raise NeverFits(
                f"the image has {self.width} x {self.height} = {pixels} pixels, accepted are {limits.max_pixels}",
                param="height",
                numbers={"pixels": pixels, "max_pixels": limits.max_pixels},
            )
        file_bytes = 0 if self.format == "raw" else self.encoded_bytes or RAW_CHANNELS * pixels
        return unet.price_request(limits, self.height, self.width, file_bytes, self.probabilities)


class AnyQuote(Form):
    """What both have in common, to tell them apart."""

    model_config = ConfigDict(extra="allow")

    model: str

    def form(self) -> type[TextQuote] | type[ImageQuote]:
        """How the whole is to be read; raises ModelNotFound."""
        forms: dict[str, type[TextQuote] | type[ImageQuote]] = {"llama": TextQuote, "unet": ImageQuote}
        if self.model not in forms:
            raise ModelNotFound(f"model: there is {' and '.join(forms)}", param="model")
        return forms[self.model]
