"""The sections of the settings, one class each; every key says what it does."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[ByteSize, Field(ge=0)]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Server(Section):
    """The HTTP frontend."""

    host: str = "127.0.0.1"
    port: Port = 8080
    max_body_bytes: Bytes = ByteSize(64 * 2**20)
    """Largest request body; checked before it is read whole."""
    max_connections: int = Field(1024, ge=1)
    """Requests served at once; a backstop, admission answers long before it."""
    request_timeout_s: Seconds = 30.0
    """Deadline of a request that names none."""
    max_request_timeout_s: Seconds = 600.0
    """Longest deadline a caller may ask for."""
    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """After a stop signal readiness is off for so long while new work is still taken: until balancers have seen it."""
    shutdown_s: Seconds = 5.0
    """Time for running answers to end after that."""


class Triton(Section):
    """The model server."""

    url: str | None = None
    """Base address of a server that already runs (``http://triton:8000``); None starts the embedded one."""
    grpc_url: str | None = None
    """gRPC address of that server (``triton:8001``), over which models are brought back; without it a load goes over
    HTTP, and an eighth of the connections waits for its end."""
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    model_repository: Path = Path("model_repository")
    load_timeout_s: Seconds = 600.0
    exit_timeout_s: Annotated[int, Field(ge=1)] = 8
    admin_key: str | None = None
    """Value of the ``x-vramgate-admin`` header that opens a restricted server's management API."""

    @property
    def address(self) -> str:
        """Base address of the server: the one that already runs, or the embedded one on loopback."""
        return self.url or f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_address(self) -> str | None:
        """Where it takes gRPC calls; None where that is not known."""
        return self.grpc_url if self.url else f"127.0.0.1:{self.grpc_port}"


class Card(Section):
    """The card whose bytes are the bank's money."""

    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, an index, a GPU UUID or a MIG UUID."""
    total: Bytes | None = None
    """Capacity; None means the whole card, and on the CPU 4 GiB or half of the memory, whichever is less."""
    margin: Annotated[str, Field(pattern=r"^\d+(\.\d+)?\s*(%|[KMGT]i?B|B)?$")] = "10%"
    """Bytes never lent, as a share of the card (at most 3 GiB) or an amount (``3072MiB``)."""
    foreign: Bytes = ByteSize(0)
    """Bytes set aside for other users of the card when grants are divided at start."""


class Llama(Section):
    """The language model and its engine."""

    model: str = "smollm2-135m-instruct"
    """A folder in Hugging Face form, or the name of the demo model."""
    served_name: str = "llama"
    dummy_weights: bool = False
    """Random weights of the folder's config.json, for benchmarks."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """``auto`` is float32 on the CPU and bfloat16 on CUDA."""
    grant: Bytes | None = None
    """Everything this engine's allocator may take; None divides the card."""
    pages: int | None = Field(None, ge=1)
    """Pages of the KV pool; None fills the grant."""
    page_tokens: int = Field(256, ge=1)
    context_tokens: int | None = Field(None, ge=2)
    """Longest prompt + output; None is the checkpoint's own limit."""
    max_batch: int = Field(16, ge=1, le=1024)
    """Sequences that decode in one step."""
    step_tokens: int = Field(512, ge=1)
    """Token budget of one step: decodes first, then prefill chunks."""
    default_max_tokens: int = Field(128, ge=1)
    """Charged and allowed where a request names no limit."""
    max_n: int = Field(8, ge=1)
    max_logprobs: int = Field(5, ge=0)
    oversubscribe: float = Field(1.0, ge=1.0)
    """Declared factor on the page account's capacity; above 1 requests may be preempted and recomputed."""
    max_waiting: int = Field(256, ge=1)
    """Requests the engine itself queues; admission keeps it short."""
    stall_s: Seconds = 30.0
    """Without a step for so long while there is work, the engine is not ready."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; None is all cores."""
    host_rung: Bytes = ByteSize(2 * 2**30)
    """Host memory for going on in float32 on the CPU when the card has none left; a model that needs more, does not."""

    def dtype_on(self, device_type: str) -> str:
        """The dtype in force on ``cpu`` or ``cuda``."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if device_type == "cuda" else "float32"


class Unet(Section):
    """The segmentation model and its engine."""

    weights: Path | None = None
    """A safetensors state dict; None is the demo model beside the model repository's config."""
    width: int = Field(16, ge=1)
    """Channels of the encoder's stem; 64 is the true ResNet50."""
    class_names: tuple[str, ...] = ("nucleus",)
    """One name is a sigmoid against background; more are an argmax over as many channels, the first the background."""
    dummy_weights: bool = False
    grant: Bytes | None = None
    """Everything this engine's allocator may take; None is what tiles and canvas need."""
    canvas: Bytes | None = None
    """Part of the grant set aside for canvases; None is 256 MiB on the CPU and 1 GiB on CUDA."""
    tile_pixels: int | None = Field(None, ge=32, multiple_of=32)
    """Edge of a tile; None is 256 on the CPU and 512 on CUDA. A multiple of 128 keeps in step with the network."""
    tile_batch: int = Field(4, ge=1)
    """Tiles in one forward pass."""
    threshold: float = Field(0.5, gt=0, lt=1)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    max_pixels: int = Field(200_000_000, ge=1)
    """Largest image that is decoded at all."""
    max_waiting: int = Field(256, ge=1)
    stall_s: Seconds = 30.0
    threads: int | None = Field(None, ge=1)
    host_rung: Bytes = ByteSize(2 * 2**30)
    """Host memory for going on in float32 on the CPU when the card has none left; a model that needs more, does not."""

    def dtype_on(self, device_type: str) -> str:
        """The dtype in force on ``cpu`` or ``cuda``."""
        return "float16" if device_type == "cuda" else "float32"

    def tile_pixels_on(self, device_type: str) -> int:
        """Edge of a tile in force on ``cpu`` or ``cuda``."""
        return self.tile_pixels or (512 if device_type == "cuda" else 256)

    def canvas_bytes_on(self, device_type: str) -> int:
        """Bytes set aside for canvases on ``cpu`` or ``cuda``."""
        return int(self.canvas) if self.canvas is not None else (2**30 if device_type == "cuda" else 2**28)


class Guest(Section):
    """The law of one guest: what a request of it adds to the card, at the most."""

    fixed: Bytes = ByteSize(0)
    """Bytes that every request takes."""
    per_body_byte: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Bytes for each byte of the request's body."""
    expected_s: Seconds = 1.0
    """How long a request usually runs; the line reckons with it."""


class Guests(Section):
    """Models of your own beside the two engines, lent bytes of the ``card`` account."""

    capacity: Bytes = ByteSize(0)
    """What guests may hold together; `card.foreign` has to set it aside."""
    models: dict[str, Guest] = {}
    """Name in the model repository -> its law."""


class Admission(Section):
    """The waiting line in front of the ledger."""

    host: Bytes = ByteSize(2 * 2**30)
    """Capacity of the ``host`` account: decoded images and results."""
    max_waiting: int = Field(512, ge=0)
    """Requests that wait for bytes; the next one is refused with 429."""
    max_waiting_bytes: Bytes = ByteSize(2**30)
    """Host memory that the bodies of waiting requests may take."""
    max_wait_s: Seconds = 30.0
    """Longest wait, whatever the caller's deadline."""


class Keeper(Section):
    """Bringing back a model whose process has died, hangs, or answers wrongly."""

    patience_s: Seconds = 30.0
    """A process without an answer, or that calls itself not ready, for so long is replaced: no load explains it."""
    canary_s: Seconds = 30.0
    """An idle engine is asked for a known answer so often."""
    max_restarts: int = Field(10, ge=1)
    """Of one model within an hour."""
    exit_when_stuck: bool = False
    """Where the model server may not load models: end with status 75, so that an orchestrator restarts both."""


class Tenants(Section):
    """Who may use the service, and how much of the card."""

    file: Path | None = None
    """Tenants and the hashes of their API keys; ``vramgate keys`` writes it, a change is seen within a second.

    None: everybody on this machine may use the service, and nobody else unless ``open``.
    """
    open: bool = False
    """Without a key file, also serve whoever reaches ``server.host`` from the network."""
    key: str | None = Field(None, repr=False)
    """API key that the command line sends to the running service."""


class Watchdog(Section):
    """The thread in each engine that reads the card."""

    poll_s: Seconds = 0.2
    stale_polls: int = Field(5, ge=1)
    """A reading older than so many polls is unknown."""


class State(Section):
    """Where things are kept."""

    dir: Path = Path("~/.local/state/vramgate")
    """Journal and snapshots; created with mode 0700."""
    cache_dir: Path = Path("~/.cache/vramgate")
    """Converted model folders and compiled code."""
    journal_size: Bytes = ByteSize(64 * 2**20)
    """Of the journal of finished leases, some 600 bytes each; the oldest go first."""
    journal_days: float = Field(30.0, gt=0)
    """A finished lease is kept no longer."""


class Log(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["pretty", "json"] = "pretty"
    """``json`` is one object a line, for collectors."""
    traces: str | None = None
    """Where spans go, by OTLP over HTTP (``http://collector:4318/v1/traces``); needs the extra ``tracing``."""
