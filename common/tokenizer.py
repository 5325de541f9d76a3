"""The model's own tokenizer, read from its folder: text to ids, ids to text as they come, chats to prompts.

Needs ``tokenizer.json``; reads ``tokenizer_config.json``, ``generation_config.json``, ``config.json`` and
``chat_template.jinja`` where they exist.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.errors import InvalidRequest, SettingsError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS = 8
"""Of the prompt, kept in front of an answer: some decoders drop the space of the first word they see."""
_MAX_UNDECIDED_TOKENS = 8
"""A character has at most four bytes, so at most four tokens; what is still broken after twice as many stays so."""


class Tokenizer:
    """One model's tokenizer. Thread-safe: nothing changes after loading."""

    def __init__(self, core: tokenizers.Tokenizer, eos_ids: Sequence[int], chat: "ChatTemplate | None") -> None:
        self._core = core
        self.eos_ids = frozenset(eos_ids)
        """Ids that end an answer."""
        self.longest_token_chars = max(map(len, core.get_vocab(with_added_tokens=True)), default=1)
        """Characters of the longest entry: a text of n tokens is no longer than n times this."""
        self._chat = chat

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Reads `folder`; raises SettingsError when there is no readable tokenizer.json in it."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise SettingsError(f"{folder} has no tokenizer.json; a model folder in Hugging Face form is needed")
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise SettingsError(f"cannot read {path}: {error}") from None
        core.no_truncation()
        core.no_padding()
        config = _read_json(folder / "tokenizer_config.json")
        return cls(core, _eos_ids(folder, core, config), ChatTemplate.load(folder, config))

    @property
    def vocab_tokens(self) -> int:
        """Entries of the vocabulary, added ones included."""
        return self._core.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`; with `special` the tokenizer adds what a prompt starts with (a rendered chat has it).

        Other threads run meanwhile.
        """
        # `encode` keeps the interpreter lock, for a second per megabyte; the batch form gives it back.
        return list(self._core.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return self._core.decode(list(ids), skip_special_tokens=True)

    def token_text(self, token_id: int) -> str:
        """One token on its own, special ones by name; for lists of alternatives, not for joining."""
        return self._core.decode([token_id], skip_special_tokens=False)

    def stream(self, prompt_ids: Sequence[int] = ()) -> "DecodeStream":
        """A decoder for one answer to `prompt_ids`, fed token by token; prompt and answer join without a seam."""
        return DecodeStream(self, prompt_ids)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt of a chat, ready for the assistant's turn; encode it with ``special=False``.

        Raises InvalidRequest when the model has no chat template, or its template refuses the messages.
        """
        if self._chat is None:
            raise InvalidRequest("this model has no chat template; send a plain prompt instead", param="messages")
        return self._chat.render(messages)


class DecodeStream:
    """Text of a growing list of ids, given out as soon as it is certain.

    Decodes a short window: tokens whose text is out already, which give the context that some decoders need, and the
    undecided ones behind them. Text that ends in a broken character waits for the tokens that complete it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        context = list(prompt_ids[-_CONTEXT_TOKENS:])
        whole = not tokenizer.decode(context).endswith(_REPLACEMENT)
        self._window = context if whole else []
        self._decided = len(self._window)

    def step(self, token_id: int) -> str | None:
        """What is certain now that this token has come; None when it adds nothing yet."""
        self._window.append(token_id)
        text = self._undecided_text()
        if not text:
            self._window.pop()
            return None
        if text.endswith(_REPLACEMENT) and len(self._window) - self._decided <= _MAX_UNDECIDED_TOKENS:
            return None
        return self._decide(text)

    def finish(self) -> str:
        """What was still waiting at the end; a character that never became whole is U+FFFD."""
        return self._decide(self._undecided_text())

    def _undecided_text(self) -> str:
        known = self._tokenizer.decode(self._window[: self._decided])
        return self._tokenizer.decode(self._window)[len(known) :]

    def _decide(self, text: str) -> str:
        del self._window[: self._decided]
        self._decided = len(self._window)
        return text


class ChatTemplate:
    """A model's chat template, run in jinja's sandbox under Hugging Face's conventions."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self._template = _compile(source)
        self._tokens = tokens

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, Any]) -> "ChatTemplate | None":
        """The template of a folder: ``chat_template.jinja``, else the tokenizer config's; None if there is neither."""
        path = folder / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else _default_template(config.get("chat_template"))
        if source is None:
            return None
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        try:
            return cls(source, {name: text for name in names if (text := _token_text(config.get(name)))})
        except TemplateError as error:
            raise SettingsError(f"{folder}: the chat template does not compile: {error}") from None

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt; raises InvalidRequest with the template's reason when it refuses `messages`."""
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **self._tokens)
        except (TemplateError, TypeError) as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}", param="messages") from None


def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(source)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(value: object, indent: int | None = None, **options: Any) -> str:
    """Plain JSON; jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _default_template(template: object) -> str | None:
    """The template that is used when nobody names one; old folders keep a list of named ones."""
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token_text(token: object) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _eos_ids(folder: Path, core: tokenizers.Tokenizer, config: Mapping[str, Any]) -> list[int]:
    """From the first file that names any: generation_config.json, config.json, tokenizer_config.json."""
    for name in ("generation_config.json", "config.json"):
        ids = _read_json(folder / name).get("eos_token_id")
        ids = [ids] if isinstance(ids, int) else ids
        if isinstance(ids, list):
            return [token_id for token_id in ids if isinstance(token_id, int)]
    token_id = core.token_to_id(_token_text(config.get("eos_token")) or "")
    return [] if token_id is None else [token_id]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}") from None
    return value if isinstance(value, dict) else {}
