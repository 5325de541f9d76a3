"""Bodies of the OpenAI routes.

Every field is honoured, priced or refused by name. ``user`` alone is read and ignored. Fields of the real API that ask
for what this server does not do are refused unless they say what it does anyway (``"tools": []``).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from common.errors import InvalidRequest
from frontend.forms import Form, one_sentence, unsupported
from frontend.sampling_form import INT64, SamplingForm

TokenIds = Annotated[list[int], Field(fail_fast=True)]
One = Field(min_length=1, max_length=1, fail_fast=True)

Prompt = Annotated[
    str | TokenIds | Annotated[list[str], One] | Annotated[list[TokenIds], One],
    one_sentence("must be one text or one list of token ids; send each prompt in a request of its own"),
]


class StreamOptions(Form):
    """Extras of a streamed answer."""

    include_usage: bool | None = None
    """Whether a last event tells the usage."""
    include_obfuscation: Annotated[None, unsupported(False)] = None


class OpenaiForm(SamplingForm):
    """What both routes have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    frequency_penalty: Annotated[None, unsupported(0, 0.0)] = None
    presence_penalty: Annotated[None, unsupported(0, 0.0)] = None
    logit_bias: Annotated[None, unsupported({})] = None

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @model_validator(mode="after")
    def _check_stream(self) -> "OpenaiForm":
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options: only together with stream", param="stream_options")
        return self


class CompletionForm(OpenaiForm):
    """``POST /v1/completions``."""

    prompt: Prompt
    logprobs: int | None = Field(None, ge=0)
    """How many alternatives per token."""
    echo: Annotated[None, unsupported(False)] = None
    suffix: Annotated[None, unsupported("")] = None
    best_of: Annotated[None, unsupported(1)] = None

    @property
    def single_prompt(self) -> str | Sequence[int]:
        """The prompt, taken out of the list it may be alone in."""
        prompt: Any = self.prompt
        alone = isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list)
        single: str | Sequence[int] = prompt[0] if alone else prompt
        return single


class TextPart(Form):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class Message(Form):
    """One turn of a chat, as a client writes it or sends an earlier answer back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)],
        one_sentence('must be a text, or a list of {"type": "text", "text": …}; pictures and sound are not supported'),
    ]
    name: Annotated[None, unsupported()] = None
    refusal: Annotated[None, unsupported()] = None
    annotations: Annotated[None, unsupported([])] = None
    audio: Annotated[None, unsupported()] = None
    tool_calls: Annotated[None, unsupported([])] = None
    function_call: Annotated[None, unsupported()] = None

    def for_template(self) -> dict[str, str]:
        """The message as chat templates read it: parts on lines of their own, a developer speaks as the system."""
        content = self.content
        text = content if isinstance(content, str) else "\n".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatForm(OpenaiForm):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, lt=INT64)
    """The newer name of ``max_tokens``."""
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    """How many alternatives per token."""
    tools: Annotated[None, unsupported([])] = None
    tool_choice: Annotated[None, unsupported("none", "auto")] = None
    parallel_tool_calls: Annotated[None, unsupported(True, False)] = None
    functions: Annotated[None, unsupported([])] = None
    function_call: Annotated[None, unsupported("none", "auto")] = None
    response_format: Annotated[None, unsupported({"type": "text"})] = None
    modalities: Annotated[None, unsupported(["text"])] = None
    audio: Annotated[None, unsupported()] = None
    prediction: Annotated[None, unsupported()] = None
    reasoning_effort: Annotated[None, unsupported()] = None
    verbosity: Annotated[None, unsupported()] = None
    web_search_options: Annotated[None, unsupported()] = None
    service_tier: Annotated[None, unsupported("auto", "default")] = None
    store: Annotated[None, unsupported(False)] = None
    metadata: Annotated[None, unsupported({})] = None

    @property
    def limit(self) -> int | None:
        """Output tokens asked for, under either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit_name(self) -> str:
        """The name under which it was asked for."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def alternatives(self) -> int | None:
        """Alternatives per token; None is no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _check_pairs(self) -> "ChatForm":
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs: only together with logprobs", param="top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise InvalidRequest(
                "max_tokens: another number than max_completion_tokens, its newer name", param="max_tokens"
            )
        return self
