"""Prompts that fill the context, against a service whose context is short enough to fill in a second."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.integration.running import Running

CONTEXT = 300
"""Tokens: more than the engine computes in two steps, and not a multiple of a page."""
SETTINGS = {
    "llama.context_tokens": str(CONTEXT),
    "llama.step_tokens": "128",
    "llama.pages": "4",
    "unet.canvas": "16MiB",
}
TOKEN = 81


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with Running(tmp_path_factory.mktemp("short"), SETTINGS) as running:
        running.wait_up()
        with OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=60) as one:
            yield one


@pytest.mark.parametrize("max_tokens", [openai.omit, 1])
def test_prompt_that_leaves_room_for_one_token_gets_one(client: OpenAI, max_tokens: Any) -> None:
    answer = client.completions.create(model="llama", prompt=[TOKEN] * (CONTEXT - 1), max_tokens=max_tokens)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (CONTEXT - 1, 1)
    assert answer.choices[0].finish_reason in {"stop", "length"}


def test_chat_may_fill_the_context(client: OpenAI) -> None:
    def ask(words: int) -> Any:
        return client.chat.completions.create(
            model="llama", messages=[{"role": "user", "content": " a" * words}], max_tokens=1
        )

    empty_tokens = ask(1).usage.prompt_tokens - 1
    assert ask(CONTEXT - 1 - empty_tokens).usage.prompt_tokens == CONTEXT - 1
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(CONTEXT - empty_tokens)
    assert refusal.value.param == "messages"


@pytest.mark.parametrize("prompt", [[TOKEN] * CONTEXT, " a" * CONTEXT, "a" * 10**6])
def test_one_token_more_is_refused_with_both_numbers(client: OpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model="llama", prompt=prompt, max_tokens=1)
    assert refusal.value.param == "prompt"
    body: Any = refusal.value.body
    assert body["context_tokens"] == CONTEXT
    assert max(body.get("prompt_tokens", 0), body.get("prompt_chars", 0)) >= CONTEXT


def test_more_tokens_than_the_prompt_leaves_are_refused_with_both_numbers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"\b261\b.*\b260\b") as refusal:
        client.completions.create(model="llama", prompt=[TOKEN] * 40, max_tokens=261)
    assert refusal.value.param == "max_tokens"
