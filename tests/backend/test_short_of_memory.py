"""Memory that the kernel really refuses, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

from tests.backend.llama_kit import save_tokenizer, small_config

FFN = 16384
"""Gate and up of 1024 tokens are 128 MiB, the activated gate half as much."""


def test_a_limited_process_answers_by_halves_or_with_an_error_and_is_whole_again(tmp_path: Path) -> None:
    config = small_config(
        vocab_size=256, hidden_size=24, intermediate_size=FFN, num_hidden_layers=1, max_position_embeddings=1280
    )
    (tmp_path / "config.json").write_text(config.to_json_string())
    save_tokenizer(tmp_path)
    command = [sys.executable, "-m", "tests.backend.short_of_memory", str(tmp_path), "0", "150", "50", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    plenty, halved, refused, after, end = [json.loads(line) for line in ran.stdout.splitlines()]
    assert plenty["rung"] == after["rung"] == "none"
    assert halved == {"ids": plenty["ids"], "rung": "halve"}
    assert refused == {"error": "InternalFault"}
    assert after["ids"] == plenty["ids"]
    assert end["ready"]
    assert end["totals"]["oom_halve"] == end["totals"]["oom_failed"] == 1
