"""What the OpenAI text routes must refuse: body as JSON text, status, code, and the field that is named."""

import json
from typing import Any

Case = tuple[str, int, str, str | None]

COMPLETION = {"model": "tiny", "prompt": "ab"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"type": "text", "text": "what is this?"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}

BAD_NUMBERS = {
    "max_tokens": ["0", "-1", "2147483648", "1e18", "1" + 40 * "0", "NaN", '"10"', "true", "1.5", "[1]"],
    "temperature": ["-0.1", "2.1", "NaN", "Infinity", "1e999", '"1"', "true"],
    "top_p": ["0", "1.01", "NaN", '"1"', "true"],
    "top_k": ["-1", "2147483648", "1.5", "true"],
    "repetition_penalty": ["0", "-1", "11", "NaN"],
    "n": ["0", "-1", "5", "1e2", "true", '"1"'],
    "seed": ["9223372036854775808", "-9223372036854775809", "1.5", '"7"', "false"],
}
BAD_VALUES = {
    "stop": ['""', '[""]', '["a","b","c","d","e"]', json.dumps("x" * 65), "1", "[1]"],
    "stream": ['"yes"', "1"],
    "user": ["1"],
    "frequency_penalty": ["0.5", "false", '"0"'],
    "presence_penalty": ["-1"],
    "logit_bias": ['{"50256": -100}'],
    "stream_options": ['{"include_usage": true}'],
    "foo": ["1", "null"],
    "lease": ['"mine"'],
}
BAD_PROMPTS = [
    '""',
    "[]",
    '[""]',
    "[[]]",
    "null",
    "3",
    '{"a": 1}',
    '["a", "b"]',
    "[[1], [2]]",
    '[1, "a"]',
    "[1.0]",
    "[true]",
]
BAD_IDS = ["[-1]", "[256]", "[" + 30 * "9" + "]"]
TOO_LONG = [json.dumps([7] * 64), json.dumps("x" * 63), json.dumps("x" * 257), json.dumps("x" * 10**6)]
BAD_COMPLETION = {
    "prompt": BAD_PROMPTS + BAD_IDS + TOO_LONG,
    "max_tokens": ["62"],
    "logprobs": ["-1", "4", "true", '"1"'],
    "echo": ["true", "1"],
    "suffix": ['"end"'],
    "best_of": ["2"],
    "messages": ["[]"],
}
BAD_CHAT = {
    "messages": ["[]", "null", '"hi"', json.dumps([{"role": "user", "content": "x" * 60}])],
    "max_tokens": ["57"],
    "max_completion_tokens": ["0", "57", "2147483648", '"5"'],
    "logprobs": ["1"],
    "tools": [json.dumps([TOOL])],
    "tool_choice": ['"required"'],
    "functions": ['[{"name": "f"}]'],
    "response_format": ['{"type": "json_object"}', '"text"'],
    "modalities": ['["text", "audio"]'],
    "reasoning_effort": ['"high"'],
    "store": ["true"],
    "service_tier": ['"flex"'],
}
BAD_MESSAGES: dict[str, list[dict[str, Any]]] = {
    "role": [{"role": "tool", "content": "hi"}, {"role": "boss", "content": "hi"}, {"content": "hi"}],
    "content": [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": 3},
        {"role": "user", "content": []},
        {"role": "user", "content": [TEXT, PICTURE]},
        {"role": "user", "content": [TEXT | {"text": 1}]},
    ],
    "name": [{"role": "user", "content": "hi", "name": "Ann"}],
    "tool_calls": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}],
    "foo": [{"role": "user", "content": "hi", "foo": 1}],
}


def _with(base: dict[str, Any], field: str, value: str) -> str:
    """The body `base` with one field set to the JSON text `value`."""
    return json.dumps(base | {field: "\0"}).replace('"\\u0000"', value)


def _fields(base: dict[str, Any], table: dict[str, list[str]]) -> list[Case]:
    return [(_with(base, field, value), 400, "invalid_value", field) for field in table for value in table[field]]


def _rest(base: dict[str, Any]) -> list[Case]:
    """What is wrong with a body whichever route reads it."""
    no_model = {key: value for key, value in base.items() if key != "model"}
    return [
        (json.dumps(base | {"model": "gpt-4o"}), 404, "model_not_found", "model"),
        (json.dumps(no_model), 400, "invalid_value", "model"),
        (_with(base, "model", "1"), 400, "invalid_value", "model"),
        ('{"model": "tiny"', 400, "invalid_value", None),
        ('{"model": "tiny", "prompt": "\\ud800"}', 400, "invalid_value", None),
        ("[" * 10_000, 400, "invalid_value", None),
        (json.dumps([base]), 400, "invalid_value", None),
        (json.dumps(base | {str(number): 1 for number in range(100)}), 400, "invalid_value", None),
        ("", 400, "invalid_value", None),
        ("null", 400, "invalid_value", None),
    ]


BAD_COMPLETIONS = (
    _fields(COMPLETION, BAD_NUMBERS)
    + _fields(COMPLETION, BAD_VALUES)
    + _fields(COMPLETION, BAD_COMPLETION)
    + _rest(COMPLETION)
    + [('{"model": "tiny"}', 400, "invalid_value", "prompt")]
)
BAD_CHATS = (
    _fields(CHAT, BAD_NUMBERS)
    + _fields(CHAT, BAD_VALUES)
    + _fields(CHAT, BAD_CHAT)
    + _rest(CHAT)
    + [
        (json.dumps(CHAT | {"messages": [message]}), 400, "invalid_value", f"messages.0.{field}")
        for field, messages in BAD_MESSAGES.items()
        for message in messages
    ]
    + [
        (json.dumps(CHAT | {"top_logprobs": 1}), 400, "invalid_value", "top_logprobs"),
        (json.dumps(CHAT | {"logprobs": True, "top_logprobs": 4}), 400, "invalid_value", "top_logprobs"),
        (json.dumps(CHAT | {"max_tokens": 1, "max_completion_tokens": 2}), 400, "invalid_value", "max_tokens"),
    ]
)
