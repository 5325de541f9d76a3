"""Text as it streams: whole characters, stop strings across token borders."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.llama.detokenise import Detokeniser
from common.tokenizer import Tokenizer
from tests.backend.llama_kit import save_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Tokenizer.load(folder)


def streamed(tokenizer: Tokenizer, text: str, stop: tuple[str, ...]) -> tuple[list[str], Detokeniser]:
    """One byte a token, as far as the stop."""
    detokeniser = Detokeniser(tokenizer, (), stop)
    pieces = []
    for token_id in tokenizer.encode(text):
        pieces.append(detokeniser.step(token_id))
        if detokeniser.stopped:
            break
    return [*pieces, detokeniser.finish()], detokeniser


def test_a_character_is_held_back_until_it_is_whole(tokenizer: Tokenizer) -> None:
    pieces, _ = streamed(tokenizer, "aé€😀", ())
    assert pieces == ["a", "", "é", "", "", "€", "", "", "", "😀", ""]


def test_a_stop_string_over_several_tokens_never_shows(tokenizer: Tokenizer) -> None:
    pieces, detokeniser = streamed(tokenizer, "one STOP two", ("STOP",))
    assert "".join(pieces) == "one "
    assert detokeniser.stopped


def test_what_only_began_like_a_stop_string_comes_out_in_the_end(tokenizer: Tokenizer) -> None:
    pieces, detokeniser = streamed(tokenizer, "xSTO", ("STOP",))
    assert pieces == ["x", "", "", "", "STO"]
    assert not detokeniser.stopped


def test_a_false_start_comes_out_as_soon_as_it_is_one(tokenizer: Tokenizer) -> None:
    pieces, _ = streamed(tokenizer, "aab.", ("aaab",))
    assert pieces == ["", "", "aab", ".", ""]


def test_the_earliest_of_several_stop_strings_counts(tokenizer: Tokenizer) -> None:
    pieces, _ = streamed(tokenizer, "abcd", ("cd", "b"))
    assert "".join(pieces) == "a"


def test_a_stop_string_of_many_bytes_counts_too(tokenizer: Tokenizer) -> None:
    pieces, detokeniser = streamed(tokenizer, "a€é€", ("é",))
    assert "".join(pieces) == "a€"
    assert detokeniser.stopped


def test_nothing_follows_a_stop(tokenizer: Tokenizer) -> None:
    _, detokeniser = streamed(tokenizer, "a.", (".",))
    assert detokeniser.step(tokenizer.encode("b")[0]) == ""
    assert detokeniser.finish() == ""


@given(
    text=st.text(alphabet="abé€", max_size=30),
    stop=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_the_pieces_join_to_the_text_before_the_first_stop(
    tokenizer: Tokenizer, text: str, stop: tuple[str, ...]
) -> None:
    pieces, detokeniser = streamed(tokenizer, text, stop)
    ends = [text.index(s) + len(s) for s in stop if s in text]
    if not ends:
        assert "".join(pieces) == text
        assert not detokeniser.stopped
        return
    seen = text[: min(ends)]
    assert "".join(pieces) == seen[: min(seen.index(s) for s in stop if s in seen)]
    assert detokeniser.stopped
