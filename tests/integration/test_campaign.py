"""A campaign of ten seconds against the real service: everybody at once, rude clients among them."""

import json
import subprocess
import sys
from pathlib import Path

CAMPAIGN = """
about = "Everybody for ten seconds"

[traffic]
length_factor = 0.03
max_prompt_tokens = 60
max_output_tokens = 8

[traffic.mix]
chat = 4
completion = 1
segment = 1
script = 1
quote = 1
leaver = 1
glutton = 1
garbage = 2

[[phases]]
name = "short"
trace_from_s = 600
duration_s = 10
time_factor = 0.5

[limits]
deadline_s = 60.0
patience_s = 20.0

[service.server]
request_timeout_s = 60.0

[service.llama]
pages = 16
context_tokens = 1024

[service.unet]
canvas = "16MiB"
"""
KINDS = {"chat", "completion", "segment", "script", "quote", "leaver", "glutton", "garbage"}


def test_a_campaign_runs_its_clients_judges_its_gates_and_leaves_its_data(tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text(CAMPAIGN)
    command = [
        sys.executable,
        "-m",
        "loadtests.campaigns",
        str(tmp_path / "short.toml"),
        "--out",
        str(tmp_path / "out"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "holds  leaked_bytes: 0" in ran.stdout
    told = json.loads((tmp_path / "out" / "short.json").read_text())
    (run,) = [row for row in told["rows"] if "kinds" in row]
    assert run["kinds"].keys() <= KINDS
    assert {"chat", "garbage"} <= run["kinds"].keys()
    assert told["figures"]["good_share"] == 1.0
    assert told["figures"]["good_tokens_per_s_short"] > 0
    assert (tmp_path / "out" / "short.html").stat().st_size > 50_000
    assert (tmp_path / "out" / "short" / "vramgate" / "requests.jsonl.gz").is_file()
