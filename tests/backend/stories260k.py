"""llama2.c's 260 K parameter story teller as a Hugging Face folder, for tests.

The file format is that of llama2.c's ``export.py``, version 0: seven int32 (dim, ffn, layers, heads, kv_heads, vocab,
context; a negative vocab means an untied head), then float32 tensors kind by kind, all layers of a kind together.
"""

import struct
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, normalizers
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = FOLDER / "stories260K.bin"
TOKENIZER = FOLDER / "tok512.bin"
HEADER = struct.Struct("<7i")


def convert(folder: Path) -> LlamaForCausalLM:
    """Writes model and tokenizer into `folder`; returns the model in float32."""
    raw = DATA.read_bytes()
    dim, ffn, layers, heads, kv_heads, vocab, context = HEADER.unpack_from(raw)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=dim,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        _fill(model, torch.from_numpy(np.frombuffer(raw, dtype="<f4", offset=HEADER.size).copy()))
    model.save_pretrained(folder)
    _tokenizer(vocab).save(str(folder / "tokenizer.json"))
    return model


def _fill(model: LlamaForCausalLM, values: torch.Tensor) -> None:
    layers, heads, kv_heads = model.model.layers, model.config.num_attention_heads, model.config.num_key_value_heads
    kinds: list[tuple[list[torch.nn.Parameter], int]] = [
        ([model.model.embed_tokens.weight], 0),
        ([layer.input_layernorm.weight for layer in layers], 0),
        ([layer.self_attn.q_proj.weight for layer in layers], heads),
        ([layer.self_attn.k_proj.weight for layer in layers], kv_heads),
        ([layer.self_attn.v_proj.weight for layer in layers], 0),
        ([layer.self_attn.o_proj.weight for layer in layers], 0),
        ([layer.post_attention_layernorm.weight for layer in layers], 0),
        ([layer.mlp.gate_proj.weight for layer in layers], 0),
        ([layer.mlp.down_proj.weight for layer in layers], 0),
        ([layer.mlp.up_proj.weight for layer in layers], 0),
        ([model.model.norm.weight], 0),
    ]
    at = 0
    for parameters, rotated_heads in kinds:
        for parameter in parameters:
            count = parameter.numel()
            tensor = values[at : at + count].view(parameter.shape)
            parameter.copy_(_halves(tensor, rotated_heads) if rotated_heads else tensor)
            at += count


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama2.c rotates neighbouring rows of a head, Hugging Face its first half against its second."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _tokenizer(vocab: int) -> tokenizers.Tokenizer:
    """Scores rank the merges, as in sentencepiece's BPE: a pair is merged when the joined piece is an entry."""
    raw = TOKENIZER.read_bytes()
    pieces, scores, at = [], [], 4
    for _ in range(vocab):
        score, length = struct.unpack_from("<fi", raw, at)
        at += 8
        pieces.append(raw[at : at + length].decode("utf-8"))
        scores.append(score)
        at += length
    pieces[:3] = ["<unk>", "<s>", "</s>"]
    pieces = pieces[:3] + [piece.replace(" ", "▁") for piece in pieces[3:]]
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = [
        (score, piece[:cut], piece[cut:])
        for piece, score in zip(pieces[259:], scores[259:], strict=True)
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    merges.sort(key=lambda merge: -merge[0])
    core = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids, merges=[(a, b) for _, a, b in merges], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return core
