import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from common.errors import InvalidRequest, SettingsError
from common.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}\n"
    "  {% if m['role'] == 'tool' %}\n"
    "    {{ raise_exception('no tools here') }}\n"
    "  {% endif %}\n"
    "{{ '<s>' + m['role'] + ': ' + m['content'] + eos_token }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_level() -> tokenizers.Tokenizer:
    """GPT-2's way: every byte is a symbol, ``<s>`` starts a prompt."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    core.train_from_iterator(["the cat sat on the mat", "der Hund, das Huhn"], trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return core


def byte_fallback() -> tokenizers.Tokenizer:
    """Llama 2's way: words start with a low line, unknown characters become byte tokens."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁cat", "a", "b"]
    vocab = {word: i for i, word in enumerate(words)}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens(["<s>", "</s>"])
    return core


def save(folder: Path, core: tokenizers.Tokenizer, **config: object) -> Tokenizer:
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return save(
        tmp_path_factory.mktemp("model"), byte_level(), eos_token="</s>", bos_token="<s>", chat_template=TEMPLATE
    )


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [piece for piece in map(stream.step, ids) if piece is not None] + [stream.finish()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40))
def test_streamed_text_joins_to_the_text_and_no_piece_is_broken(tokenizer: Tokenizer, text: str) -> None:
    pieces = streamed(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(ids=st.lists(st.integers(0, 299), max_size=60))
def test_any_ids_at_all_stream_as_valid_text_without_waiting_for_ever(tokenizer: Tokenizer, ids: list[int]) -> None:
    "".join(streamed(tokenizer, ids)).encode("utf-8")


def test_byte_tokens_of_one_character_wait_for_each_other(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, byte_fallback())
    ids = [byte + 3 for byte in "你好".encode()]
    stream = tokenizer.stream()
    assert [stream.step(token_id) for token_id in ids] == [None, None, "你", None, None, "好"]
    assert stream.finish() == ""


def test_spaces_between_streamed_words_survive_a_special_token_in_between(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, byte_fallback())
    cat, special = 3 + 256 + 1, 2
    assert "".join(streamed(tokenizer, [cat, special, cat])) == tokenizer.decode([cat, special, cat]) == "cat cat"


def test_an_answer_keeps_the_space_between_it_and_its_prompt(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, byte_fallback())
    cat = 3 + 256 + 1
    assert tokenizer.stream().step(cat) == "cat"
    assert tokenizer.stream([cat]).step(cat) == " cat"


def test_an_answer_after_half_a_character_still_comes_out(tokenizer: Tokenizer) -> None:
    half, rest = tokenizer.encode("é", special=False)
    stream = tokenizer.stream([half])
    (letter,) = tokenizer.encode("a", special=False)
    assert [stream.step(rest), stream.step(letter)] == [None, "\N{REPLACEMENT CHARACTER}a"]


@pytest.mark.parametrize("token_id", [0, 200])
def test_an_endless_answer_without_text_is_decoded_in_short_windows(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, token_id: int
) -> None:
    lengths = []
    decode = tokenizer.decode

    def watched(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return decode(ids)

    monkeypatch.setattr(tokenizer, "decode", watched)
    stream = tokenizer.stream(tokenizer.encode("the cat"))
    for _ in range(100):
        stream.step(token_id)
    assert max(lengths) < 30


def test_a_character_cut_off_at_the_end_becomes_a_replacement_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é", special=False)
    assert len(ids) == 2
    assert streamed(tokenizer, ids[:1]) == ["\N{REPLACEMENT CHARACTER}"]


def test_special_tokens_start_a_prompt_and_never_show_in_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("cat") == [0, *tokenizer.encode("cat", special=False)]
    assert tokenizer.decode([0, *tokenizer.encode("cat", special=False), 1]) == "cat"
    assert tokenizer.token_text(1) == "</s>"


def test_no_text_is_longer_than_its_tokens_can_say(tokenizer: Tokenizer) -> None:
    text = "the cat sat on the mat"
    assert len(text) <= tokenizer.longest_token_chars * len(tokenizer.encode(text, special=False))


def test_a_chat_is_rendered_as_hugging_face_would(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.chat([{"role": "user", "content": "<b>hi</b>"}, {"role": "assistant", "content": "é"}])
    assert prompt == "<s>user: <b>hi</b></s>\n<s>assistant: é</s>\nassistant:"


def test_a_template_that_refuses_says_why(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="no tools here") as caught:
        tokenizer.chat([{"role": "tool", "content": "x"}])
    assert caught.value.param == "messages"


def test_a_template_cannot_leave_its_sandbox(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, byte_level(), chat_template="{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InvalidRequest):
        tokenizer.chat([{"role": "user", "content": "x"}])


def test_a_template_file_beats_the_config_and_a_list_means_its_default(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "{{ messages | tojson }}"}]
    message = {"role": "user", "content": "<é>"}
    assert save(tmp_path, byte_level(), chat_template=named).chat([message]) == '[{"role": "user", "content": "<é>"}]'
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(tmp_path).chat([message]) == "file"


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        save(tmp_path, byte_level()).chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("generation_config.json", [1, 2], {1, 2}),
        ("generation_config.json", 7, {7}),
        ("config.json", 5, {5}),
        ("config.json", None, {1}),
    ],
)
def test_the_end_of_an_answer_comes_from_the_first_file_that_names_it(
    tmp_path: Path, name: str, value: object, expected: set[int]
) -> None:
    (tmp_path / name).write_text(json.dumps({"eos_token_id": value}))
    assert save(tmp_path, byte_level(), eos_token={"content": "</s>"}).eos_ids == expected


@pytest.mark.parametrize("content", [None, "{", '{"version": "1.0"}'])
def test_a_folder_without_a_usable_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SettingsError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
