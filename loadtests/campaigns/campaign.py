"""A campaign as its TOML file says it; every key says what it does."""

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from common.errors import SettingsError
from common.sections import Bytes, Seconds, Section

FOLDER = Path(__file__).parent

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Kind(StrEnum):
    """What one arrival is."""

    CHAT = "chat"
    """A chat, streamed."""
    COMPLETION = "completion"
    """A continuation in one piece."""
    SEGMENT = "segment"
    """A picture in, its mask out."""
    SCRIPT = "script"
    """A ``tritonclient`` script that calls the language model's ``infer``."""
    QUOTE = "quote"
    """The price of a chat that is not run."""
    LEAVER = "leaver"
    """A chat whose client goes away in the middle."""
    GLUTTON = "glutton"
    """A prompt far beyond the context."""
    GARBAGE = "garbage"
    """What no client should send."""

    @property
    def rude(self) -> bool:
        """Whether it is sent to do harm; such arrivals count for the gates, not for the shares."""
        return self in (Kind.LEAVER, Kind.GLUTTON, Kind.GARBAGE)

    @property
    def paying(self) -> bool:
        """Whether its answer is work of a model: what shares and goodput are about."""
        return not self.rude and self is not Kind.QUOTE


class Traffic(Section):
    """Who sends what; every arrival of the trace becomes one request, of a kind drawn by the mix."""

    trace: str = "azure_conversation_2023"
    seed: int = 1
    length_factor: Factor = 1.0
    """On prompt and output tokens of the trace."""
    tokens_per_word: Factor = 1.3
    """Of the model's tokenizer; what a prompt really had is in the answers."""
    max_prompt_tokens: int = Field(4096, ge=1)
    max_output_tokens: int = Field(1024, ge=1)
    mix: dict[Kind, Annotated[float, Field(ge=0)]]
    """Kind -> weight."""
    megapixels: dict[str, Annotated[float, Field(gt=0)]] = Field({"0.06": 1.0}, min_length=1)
    """Size of a picture -> weight."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if not self.mix or sum(self.mix.values()) <= 0:
            raise ValueError("mix: at least one kind needs a weight above 0")
        return self


class Phase(Section):
    """A piece of the trace, played at its own speed; the next phase begins after its pause."""

    name: str
    trace_from_s: float = Field(0.0, ge=0)
    duration_s: Seconds
    """Of arrivals."""
    time_factor: Factor
    """How much faster than recorded."""
    pause_s: float = Field(0.0, ge=0)
    """Nothing arrives for so long after it."""


class Limits(Section):
    """What a client bears."""

    deadline_s: Seconds = 30.0
    """A whole answer within it is good; told to services that understand ``X-Request-Timeout``."""
    patience_s: Seconds = 10.0
    """So long after its deadline a client without an end of any kind has hung, and leaves."""
    settle_s: Seconds = 20.0
    """After the last client the ledger must be empty within it."""
    watch_s: Seconds = 0.5
    """Between two looks at ledger, driver and processes."""


class Gates(Section):
    """What must hold for our own service; None does not ask."""

    max_oom: int = 0
    max_hung: int = 0
    max_errors: int = 0
    """Answers that are neither good, late, refused with a reason, nor due to the client."""
    max_leaked_bytes: int = 0
    max_price_overrun_ratio: float = 0.0
    """Largest (held - quoted) / quoted of an answer."""
    max_false_refusal_share: float = 0.0
    """Refusals although the ledger had room and nobody waited, of all refusals."""
    max_refusal_p95_s: float | None = None
    max_rss_growth: float | None = None
    """Of any process, between the first and the last tenth of the campaign."""
    min_answers: int = 1
    """Good answers; a campaign without any proves nothing."""


class Campaign(Section):
    """One campaign."""

    name: str = ""
    about: str
    traffic: Traffic
    phases: tuple[Phase, ...] = Field(min_length=1)
    limits: Limits = Limits()
    gates: Gates = Gates()
    contestants: tuple[str, ...] = ("vramgate",)
    """Who is measured, one after the other."""
    model: str = "demo"
    """``demo``, or ``llama-3-8b`` for its architecture with random weights."""
    wall: Bytes | None = None
    """What of a CUDA card is left to each contestant; the rest is held by a process of its own."""
    service: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of the service, as in ``vramgate.toml``; the baselines read the models from it."""
    semaphore: int = Field(20, ge=1)
    """Requests at once in the baseline that counts requests."""

    @property
    def total_s(self) -> float:
        """From the first arrival to the last moment at which a client may still be there."""
        phases_s = sum(phase.duration_s + phase.pause_s for phase in self.phases)
        return phases_s + self.limits.deadline_s + self.limits.patience_s

    def faster(self, duration_s: float) -> Self:
        """The same with phases of another length, for a first look."""
        phases = tuple(phase.model_copy(update={"duration_s": duration_s}) for phase in self.phases)
        return self.model_copy(update={"phases": phases})


def load(name: str, folder: Path = FOLDER) -> Campaign:
    """The campaign in ``NAME.toml``, or in a file that is named; raises SettingsError with the key that is wrong."""
    path = path_of(name, folder)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        return Campaign.model_validate(values | {"name": path.stem})
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise SettingsError(f"there is no campaign {name!r}; there are: {known}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SettingsError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """Where the campaign is written down."""
    return Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
