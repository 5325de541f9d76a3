"""What the text routes have in common: how to sample, how much, and which fields of the OpenAI API are refused."""

from typing import Annotated, Any

from pydantic import Field

from frontend.forms import Form, one_sentence

MAX_STOPS = 4
MAX_STOP_CHARS = 64
INT64 = 2**63

StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True)],
    one_sentence(f"must be a text of 1 to {MAX_STOP_CHARS} characters, or a list of at most {MAX_STOPS} of them"),
]


class SamplingForm(Form):
    """Sampling and length; null is the same as absent, and absent is the default of the OpenAI API."""

    max_tokens: int | None = Field(None, ge=1, lt=INT64)
    temperature: float | None = Field(None, ge=0, le=2)
    """0 is greedy."""
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    """0 is off."""
    repetition_penalty: float | None = Field(None, ge=0.1, le=10)
    n: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: Stop | None = None

    def sampling(self) -> dict[str, Any]:
        """The keywords of a :class:`frontend.runs.TextJob` that the client has set."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "repetition_penalty": self.repetition_penalty,
            "n": self.n,
            "seed": self.seed,
            "stop": stop,
        }
        return {name: value for name, value in given.items() if value is not None}
