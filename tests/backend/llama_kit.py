"""Small Llama models with random weights, their tokenizer, an engine over them, and an outlet that collects."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from backend.llama.engine import LlamaEngine
from backend.llama.load import open_runner
from backend.llama.request import Chunk, Generation, Sampling
from backend.llama.runner import Runner
from common.errors import RequestError
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import LLAMA_PAGES, Lease, Statement

CPU = torch.device("cpu")
GREEDY = Sampling(temperature=0.0)
WAIT_S = 60.0


def small_config(**changes: Any) -> LlamaConfig:
    """Odd sizes, three query heads to a key/value head."""
    sizes: dict[str, Any] = {
        "vocab_size": 307,
        "hidden_size": 36,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.4,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return LlamaConfig(**sizes | changes)


def save_model(folder: Path, config: LlamaConfig, seed: int = 0) -> LlamaForCausalLM:
    """Writes a random model with a byte tokenizer in Hugging Face form; returns the model."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    """A tokenizer whose every token is one byte: ids 0 to 255 in GPT-2's order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.save(str(folder / "tokenizer.json"))


def settings_of(folder: Path, **llama: Any) -> Settings:
    """Settings for a small pool of small pages, in float32."""
    values = {
        "model": str(folder),
        "dtype": "float32",
        "grant": 2**30,
        "pages": 24,
        "page_tokens": 16,
        "step_tokens": 24,
        "max_batch": 6,
    }
    return Settings.model_validate({"llama": values | llama, "card": {"device": "cpu"}})


def runner_of(settings: Settings) -> Runner:
    """The model and pool that settings ask for, on the CPU."""
    return open_runner(settings, Path(settings.llama.model), CPU)


@contextmanager
def engine_of(settings: Settings, runner: Runner | None = None, **arguments: Any) -> Iterator[LlamaEngine]:
    """An engine that is warm, and closed afterwards; no page may be missing at the end."""
    folder = Path(settings.llama.model)
    engine = LlamaEngine(runner or runner_of(settings), Tokenizer.load(folder), settings.llama, **arguments)
    engine.start()
    try:
        yield engine
        engine.check()
    finally:
        engine.close()


class Collector:
    """An outlet that keeps everything, and says when the end has come."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.statement: Statement | None = None
        self.error: RequestError | None = None
        self.progress = threading.Event()
        """Set by the first token."""
        self._ended = threading.Event()
        self.ends = 0

    def put(self, result: Chunk) -> None:
        self.chunks.append(result)
        self.progress.set()

    def finish(self, statement: Statement) -> None:
        self.statement = statement
        self._end()

    def fail(self, error: RequestError) -> None:
        self.error = error
        self._end()

    def wait(self) -> "Collector":
        """Returns when the end has come; an error is left for the test to look at."""
        assert self._ended.wait(WAIT_S), "no end within a minute"
        return self

    def ids(self, index: int = 0) -> list[int]:
        """Tokens of one sequence."""
        return [token_id for chunk in self.chunks if chunk.index == index for token_id in chunk.token_ids]

    def text(self, index: int = 0) -> str:
        """Text of one sequence."""
        return "".join(chunk.text for chunk in self.chunks if chunk.index == index)

    def finish_reason(self, index: int = 0) -> str | None:
        """Of one sequence; None when it has none."""
        reasons = [chunk.finish_reason for chunk in self.chunks if chunk.index == index and chunk.finish_reason]
        assert len(reasons) <= 1
        return reasons[0] if reasons else None

    def _end(self) -> None:
        self.ends += 1
        self.progress.set()
        self._ended.set()


def run(engine: LlamaEngine, request: Generation) -> Collector:
    """One request, start to end."""
    return start(engine, request).wait()


def start(engine: LlamaEngine, request: Generation) -> Collector:
    """One request, started."""
    outlet = Collector()
    engine.submit(request, outlet)
    return outlet


def lease_of(name: str, deadline_s: float = WAIT_S, paid_bytes: int = 2**30, max_tokens: int | None = None) -> Lease:
    """A lease that paid enough."""
    return Lease(name, {LLAMA_PAGES: paid_bytes}, deadline_s, max_tokens)


def generated(model: LlamaForCausalLM, prompt_ids: tuple[int, ...], max_tokens: int) -> list[int]:
    """What transformers generates greedily."""
    prompt = torch.tensor([prompt_ids])
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    tokens: list[int] = out[0, len(prompt_ids) :].tolist()
    return tokens
