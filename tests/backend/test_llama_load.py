"""What an operator may point the engine at, and what is refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from backend.llama.engine import load
from backend.llama.request import Generation
from common.errors import SettingsError
from estimator.llama import LlamaShape, standing
from tests.backend.llama_kit import (
    GREEDY,
    Collector,
    generated,
    run,
    runner_of,
    save_model,
    save_tokenizer,
    settings_of,
    small_config,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path, small_config())
    return tmp_path


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_is_served_by_name_of_its_path(folder: Path) -> None:
    engine = load(settings_of(folder, threads=1))
    try:
        answer = run(engine, Generation((1, 2, 3), 5))
        assert len(answer.ids()) == 5
        assert engine.limits.tokenizer_dir == str(folder)
        assert engine.health().ready
        assert engine.device == "cpu"
    finally:
        engine.close()


def test_without_a_number_of_pages_the_pool_fills_the_grant(folder: Path) -> None:
    settings = settings_of(folder, pages=None, grant=2**22)
    runner = runner_of(settings)
    shape = LlamaShape.from_config(json.loads((folder / "config.json").read_text()))

    def standing_bytes(pages: int) -> int:
        return standing(shape, "float32", 16, pages, 24, 6).total_bytes

    assert standing_bytes(runner.pool.pages) <= 2**22 < standing_bytes(runner.pool.pages + 1)


def test_the_priced_parts_are_the_real_parts(folder: Path) -> None:
    runner = runner_of(settings_of(folder))
    price = standing(runner.model.shape, "float32", 16, 24, 24, 6)
    lines = {line.why.partition(":")[0]: line.bytes for line in price.lines}
    model = runner.model
    parts = [model.embedding, model.norm, model.head]
    for layer in model.layers:
        parts += [layer.attention_norm, layer.mlp_norm]
        parts += [linear.weight for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    assert lines["weights"] == sum(part.nbytes for part in parts)
    assert lines["pages"] + lines["padding"] == runner.pool.nbytes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_answers_much_as_float32_does(folder: Path, dtype: str) -> None:
    whole, half = runner_of(settings_of(folder)), runner_of(settings_of(folder, dtype=dtype))
    assert half.pool.dtype == getattr(torch, dtype)
    difference = (half.model.head.float() - whole.model.head).abs().max()
    assert 0 < difference < 0.02
    half.warm_up()


def test_an_old_config_with_rope_scaling_is_the_same_model(folder: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 3.0}
    config = small_config(rope_parameters=scaling | {"rope_theta": 700.0})
    model = save_model(folder, config)
    path = folder / "config.json"
    values = json.loads(path.read_text())
    del values["rope_parameters"]
    path.write_text(json.dumps(values | {"rope_theta": 700.0, "rope_scaling": scaling}))
    engine = load(settings_of(folder))
    try:
        assert run(engine, Generation((5, 6, 7), 20)).ids() == generated(model, (5, 6, 7), 20)
    finally:
        engine.close()


def test_dummy_weights_need_only_a_config_and_a_tokenizer(tmp_path: Path) -> None:
    small_config().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    texts = []
    for _ in range(2):
        engine = load(settings_of(tmp_path, dummy_weights=True))
        try:
            texts.append(run(engine, Generation((1, 2), 8, sampling=GREEDY)).ids())
        finally:
            engine.close()
    assert texts[0] == texts[1]


def test_a_set_context_bounds_prompt_and_answer(folder: Path) -> None:
    assert runner_of(settings_of(folder, context_tokens=50)).model.shape.context_tokens == 50
    with pytest.raises(SettingsError, match=r"context_tokens: 129 is more than the checkpoint's 128"):
        runner_of(settings_of(folder, context_tokens=129))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"vocab_size": 308}, r"embed_tokens.weight is \[307, 36\], but config.json says \[308, 36\]"),
        ({"num_hidden_layers": 4}, r"no tensor model\.layers\.3\."),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_type 'longrope'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
        ({"attention_bias": True}, r"no tensor model\.layers\.0\.self_attn\.q_proj\.bias"),
    ],
)
def test_a_config_that_does_not_fit_is_named(folder: Path, change: dict[str, Any], message: str) -> None:
    edit_config(folder, **change)
    with pytest.raises(SettingsError, match=message):
        runner_of(settings_of(folder))


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_missing_or_broken_weights_are_named(folder: Path, content: bytes | None) -> None:
    path = folder / "model.safetensors"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"cannot read the weights .*model\.safetensors"):
        runner_of(settings_of(folder))


def test_a_broken_index_is_named(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(SettingsError, match=r"index\.json"):
        runner_of(settings_of(folder))


@pytest.mark.parametrize(
    "llama", [{"grant": 2**16}, {"grant": 2**20, "pages": 10_000}, {"grant": 2**16, "pages": None}]
)
def test_a_grant_that_is_too_small_says_what_is_needed(folder: Path, llama: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"B are needed .* the grant is .* B; raise llama\.grant"):
        runner_of(settings_of(folder, **llama))


def test_a_failing_warm_up_fails_the_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("backend.llama.runner.Runner.forward", broken)
    with pytest.raises(RuntimeError, match="no such kernel"):
        load(settings_of(folder))


def test_what_was_saved_by_transformers_is_read_back(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    ours = runner_of(settings_of(folder)).model
    assert torch.equal(ours.embedding, model.model.embed_tokens.weight)
    assert torch.equal(ours.layers[2].down.weight, model.model.layers[2].mlp.down_proj.weight)


def test_an_engine_that_is_closed_says_so_and_takes_nothing(folder: Path) -> None:
    engine = load(settings_of(folder))
    engine.close()
    assert not engine.health().ready
    with pytest.raises(Exception, match="closing"):
        engine.submit(Generation((1,), 1), Collector())
