import gzip
from pathlib import Path

import pytest

from common.errors import SettingsError
from loadtests.traces import questions, trace
from loadtests.traces.convert import read_csv
from loadtests.traces.trace import Call

CALLS = [Call(0.0, 374, 44), Call(4.315, 396, 109)]


def test_a_trace_comes_back_as_it_was_written_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    path = trace.write("mine", CALLS, ["mine", "CC0"], tmp_path)
    first = path.read_bytes()
    assert trace.read("mine", tmp_path) == CALLS
    assert trace.write("mine", CALLS, ["mine", "CC0"], tmp_path).read_bytes() == first


def test_the_committed_trace_is_whole_small_and_carries_its_licence() -> None:
    calls = trace.read("azure_conversation_2023")
    assert len(calls) == 19_366
    assert calls[0] == Call(0.0, 374, 44)
    path = trace.FOLDER / "azure_conversation_2023.csv.gz"
    assert path.stat().st_size < 300_000
    assert b"CC-BY-4.0" in gzip.decompress(path.read_bytes())[:1000]


def test_an_unknown_trace_names_those_that_are_there() -> None:
    with pytest.raises(SettingsError, match="azure_conversation_2023"):
        trace.read("no_such")


@pytest.mark.parametrize(
    "text",
    [
        "a,b,c\n1,2,3\n",
        "arrival_ms,prompt_tokens,output_tokens\n1,x,3\n",
        "arrival_ms,prompt_tokens,output_tokens\n1\n",
    ],
)
def test_what_is_no_trace_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.csv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(SettingsError, match="bad"):
        trace.read("bad", tmp_path)


def test_a_trace_out_of_order_is_refused(tmp_path: Path) -> None:
    trace.write("mine", reversed(CALLS), [], tmp_path)
    with pytest.raises(SettingsError, match="order"):
        trace.read("mine", tmp_path)


def test_published_csvs_are_read_from_their_first_call_on(tmp_path: Path) -> None:
    source = tmp_path / "azure.csv"
    source.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    first, second = read_csv(source)
    assert (first.at_s, first.prompt_tokens, second.output_tokens) == (0.0, 374, 109)
    assert second.at_s == pytest.approx(4.314579, abs=1e-5)


def test_a_csv_without_the_columns_says_which_are_missing(tmp_path: Path) -> None:
    source = tmp_path / "other.csv"
    source.write_text("when,what\n1,2\n")
    with pytest.raises(SettingsError, match="arrival_s or TIMESTAMP"):
        read_csv(source)


def test_prompts_have_the_wished_length_and_are_the_same_for_the_same_seed() -> None:
    assert len(questions.prompt(1000, 3).split()) == 1000
    assert questions.prompt(50, 3) == questions.prompt(50, 3)
    assert questions.prompt(50, 3) != questions.prompt(50, 4)
    assert questions.prompt(0, 0)
