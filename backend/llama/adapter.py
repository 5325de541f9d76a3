"""How the Llama engine shows itself to Triton: tensor names, streaming, joined chunks."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from backend.llama import request as llama_request
from backend.llama.engine import LlamaEngine
from backend.llama.request import Chunk, Generation
from backend.triton_io import Arrays, strings
from common.sections import Llama
from common.wire import Lease


class LlamaAdapter:
    """Inputs and outputs as in the names of Triton's own LLM backends."""

    inputs = (
        "text_input",
        "input_ids",
        "max_tokens",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "repetition_penalty",
        "logprobs",
        "seed",
        "stop",
        "stream",
    )

    def __init__(self, engine: LlamaEngine, settings: Llama) -> None:
        self.engine = engine
        self._settings = settings

    def parse(self, inputs: Arrays, lease: Lease | None, wanted: frozenset[str]) -> Generation:
        """Checks every input on its own, since clients may reach Triton directly; raises RequestError."""
        return llama_request.parse(inputs, lease, self.engine.limits, self._settings, self.engine.tokenizer)

    def streams(self, inputs: Arrays, lease: Lease | None) -> bool:
        """With `stream` or a lease; else a client of ``generate`` gets exactly one response."""
        return lease is not None or bool(np.any(inputs.get("stream", False)))

    def greeting(self) -> Arrays:
        """An empty text."""
        return {"text_output": strings("")}

    def key(self, result: Chunk) -> int:
        """Chunks of one sequence may be joined."""
        return result.index

    def join(self, first: Chunk, second: Chunk) -> Chunk:
        """One chunk of two that follow each other."""
        return llama_request.join(first, second)

    def tensors(self, results: list[Chunk]) -> Arrays:
        """text_output, index, finish_reason and logprobs [n chunks]; token_ids of all chunks one after the other."""
        arrays: dict[str, Any] = {
            "text_output": strings(*(chunk.text for chunk in results)),
            "token_ids": np.array([token for chunk in results for token in chunk.token_ids], dtype=np.int32),
            "index": np.array([chunk.index for chunk in results], dtype=np.int32),
        }
        if any(chunk.logprobs for chunk in results):
            arrays["logprobs"] = strings(*(_logprobs_json(chunk) for chunk in results))
        if any(chunk.finish_reason for chunk in results):
            arrays["finish_reason"] = strings(*(chunk.finish_reason or "" for chunk in results))
        return arrays


def _logprobs_json(chunk: Chunk) -> str:
    return json.dumps([asdict(entry) for entry in chunk.logprobs or ()])
