"""A language model in a process whose address space the kernel limits; prints a JSON line for each answer.

Arguments: the model's folder, then MiB that the process may grow by, one number an answer; 0 lifts the limit.
"""

import json
import resource
import sys
import threading
from pathlib import Path

import torch

from backend.llama.engine import LlamaEngine
from backend.llama.load import open_runner
from backend.llama.request import Chunk, Generation
from common.errors import RequestError
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Statement

STEP_TOKENS = 1024
PROMPT = tuple((7 * place) % 256 for place in range(STEP_TOKENS))


class Teller:
    """An outlet that prints the end."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.ended = threading.Event()

    def put(self, result: Chunk) -> None:
        self.ids += result.token_ids

    def finish(self, statement: Statement) -> None:
        print(json.dumps({"ids": self.ids, "rung": statement.rung}), flush=True)
        self.ended.set()

    def fail(self, error: RequestError) -> None:
        print(json.dumps({"error": type(error).__name__}), flush=True)
        self.ended.set()


def limit(grow_mib: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    now_bytes = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + grow_mib * 2**20 if grow_mib else hard, hard))


def main(folder: str, *grow_mib: str) -> None:
    torch.set_num_threads(1)
    llama = {"model": folder, "dummy_weights": True, "dtype": "float32", "grant": 2**32, "pages": 6}
    settings = Settings.model_validate({"llama": llama | {"step_tokens": STEP_TOKENS}, "card": {"device": "cpu"}})
    runner = open_runner(settings, Path(folder), torch.device("cpu"))
    engine = LlamaEngine(runner, Tokenizer.load(Path(folder)), settings.llama)
    engine.start()
    for grow in grow_mib:
        limit(int(grow))
        outlet = Teller()
        engine.submit(Generation(PROMPT, 3), outlet)
        outlet.ended.wait()
    print(json.dumps({"totals": engine.footprint().totals, "ready": engine.health().ready}), flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
