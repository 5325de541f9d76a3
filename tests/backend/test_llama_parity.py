"""Greedy answers, token for token, against transformers' own generate, in float32 on the CPU."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from backend.llama.request import Generation
from common.model_folder import demo_folder
from common.sections import State
from tests.backend.llama_kit import (
    Collector,
    engine_of,
    generated,
    lease_of,
    run,
    save_model,
    save_tokenizer,
    settings_of,
    small_config,
    start,
)
from tests.backend.stories260k import DATA, convert

CONFIGS: dict[str, dict[str, Any]] = {
    "three heads to one": {},
    "one head to one": {"num_key_value_heads": 6},
    "all heads to one": {"hidden_size": 35, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 14},
    "eight heads to one": {"hidden_size": 40, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 6},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 22},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    "dynamic rope": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}},
    "yarn rope": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "llama 3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}
PROMPT = tuple(random.Random(1).choices(range(300), k=37))
MAX_TOKENS = 40


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_answer_equals_what_generate_says_whatever_the_config(tmp_path: Path, name: str) -> None:
    model = save_model(tmp_path, small_config(**CONFIGS[name]))
    with engine_of(settings_of(tmp_path)) as engine:
        answer = run(engine, Generation(PROMPT, MAX_TOKENS))
    assert answer.ids() == generated(model, PROMPT, MAX_TOKENS)
    assert answer.finish_reason() == "length"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("model")
    return folder, save_model(folder, small_config())


@pytest.mark.parametrize("prompt_tokens", [1, 2, 15, 16, 17, 23, 24, 25, 49, 127])
def test_answers_hold_at_every_edge_of_page_and_chunk(small: tuple[Path, LlamaForCausalLM], prompt_tokens: int) -> None:
    folder, model = small
    prompt = tuple(random.Random(prompt_tokens).choices(range(300), k=prompt_tokens))
    max_tokens = min(20, 128 - prompt_tokens)
    with engine_of(settings_of(folder)) as engine:
        assert run(engine, Generation(prompt, max_tokens)).ids() == generated(model, prompt, max_tokens)


@pytest.mark.parametrize("step_tokens", [1, 3, 200])
@pytest.mark.parametrize("page_tokens", [1, 5, 128])
def test_the_sizes_of_page_and_step_change_no_answer(
    small: tuple[Path, LlamaForCausalLM], page_tokens: int, step_tokens: int
) -> None:
    folder, model = small
    settings = settings_of(folder, page_tokens=page_tokens, pages=130, step_tokens=step_tokens)
    with engine_of(settings) as engine:
        answers = [start(engine, Generation(PROMPT[:count], 10)) for count in (37, 20, 1)]
        for answer, count in zip(answers, (37, 20, 1), strict=True):
            assert answer.wait().ids() == generated(model, PROMPT[:count], 10)


@pytest.mark.parametrize("oversubscribe", [1.0, 3.0])
def test_neighbours_that_come_go_and_are_cancelled_change_no_answer(
    small: tuple[Path, LlamaForCausalLM], oversubscribe: float, overlaps: bool
) -> None:
    folder, model = small
    chance = random.Random(7)
    jobs: list[tuple[Generation, Collector, bool]] = []
    with engine_of(settings_of(folder, pages=14, oversubscribe=oversubscribe), overlaps=overlaps) as engine:
        for number in range(40):
            prompt = tuple(chance.choices(range(300), k=chance.randint(1, 60)))
            request = Generation(prompt, chance.randint(1, 60), lease=lease_of(f"lease-{number}"))
            answer = start(engine, request)
            leaves = chance.random() < 0.3
            jobs.append((request, answer, leaves))
            if leaves:
                answer.progress.wait(chance.choice([0.0, 0.02]))
                engine.cancel(f"lease-{number}")
        for request, answer, leaves in jobs:
            expected = generated(model, request.prompt_ids, request.max_tokens)
            got = answer.wait().ids()
            assert got == (expected[: len(got)] if leaves and answer.error else expected)
        assert any(answer.error for _, answer, _ in jobs)
        assert bool(engine.footprint().totals["preemptions"]) == (oversubscribe > 1)


def test_an_answer_ends_at_the_end_token_as_generate_does(tmp_path: Path, overlaps: bool) -> None:
    free = save_model(tmp_path, small_config())
    expected = generated(free, PROMPT, MAX_TOKENS)
    end = expected[10]
    model = save_model(tmp_path, small_config(eos_token_id=end))
    with engine_of(settings_of(tmp_path), overlaps=overlaps) as engine:
        answer = run(engine, Generation(PROMPT, MAX_TOKENS))
    assert answer.ids() == generated(model, PROMPT, MAX_TOKENS) == expected[: expected.index(end) + 1]
    assert answer.finish_reason() == "stop"


def test_a_sharded_checkpoint_is_the_same_model(tmp_path: Path) -> None:
    model = save_model(tmp_path, small_config())
    sharded = tmp_path / "sharded"
    model.save_pretrained(sharded, max_shard_size="30KB")
    save_tokenizer(sharded)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    with engine_of(settings_of(sharded)) as engine:
        assert run(engine, Generation(PROMPT, 20)).ids() == generated(model, PROMPT, 20)


@pytest.mark.skipif(not DATA.is_file(), reason=f"{DATA} is not there")
def test_stories260k_tells_its_story_as_generate_does(tmp_path: Path) -> None:
    model = convert(tmp_path)
    with engine_of(settings_of(tmp_path, pages=80, max_batch=4)) as engine:
        prompts = [tuple(engine.tokenizer.encode(text)) for text in ("Zoo", "Once upon a time", "Lily")]
        answers = [start(engine, Generation(prompt, 120)) for prompt in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.wait().ids() == generated(model, prompt, 120)
    assert answers[0].text().startswith(" was a little girl named Lily. She loved to play outside in the park.")


@pytest.mark.skipif(not demo_folder(State().cache_dir).is_dir(), reason="the demo model has not been converted here")
def test_smollm2_answers_as_generate_does() -> None:
    folder = demo_folder(State().cache_dir)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with engine_of(settings_of(folder, pages=40, page_tokens=64, step_tokens=128)) as engine:
        chats = ["What is the capital of France?", "Count to five."]
        texts = [engine.tokenizer.chat([{"role": "user", "content": text}]) for text in chats]
        prompts = [tuple(engine.tokenizer.encode(text, special=False)) for text in texts]
        answers = [start(engine, Generation(prompt, 24)) for prompt in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.wait().ids() == generated(model, prompt, 24)
    assert answers[0].text() == "The capital of France is Paris."
