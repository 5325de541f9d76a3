"""The law of a plain language model: the allocator's peak of one ``generate`` call of transformers, from shapes alone.

For users who guard a model of their own without our engines (account ``card``). The peak is the largest of a few
*moments*, each a list of tensors that live together. Names: B batch, T prompt tokens, N new tokens, S = T + N - 1 (what
the cache ends with), e bytes of an element. Read from transformers 5.17 (`modeling_llama`, `cache_utils`,
`sdpa_attention`, `generation/utils`), confirmed to the byte with torch's memory history on an H200, torch 2.11.

The moments: ``feed-forward`` in the last layer of prefill. ``mask``, only with padding: keys and values are repeated
for every query head and the mask is made once more in the model's dtype; in prefill and in every decode step.
``scores``, only in float32 with shared key/value heads and no mask: no fused kernel serves it, and T x T scores are
stored for every head. ``grow``: a decode step's ``torch.cat`` holds one layer's values twice. ``logits``: this step's
row per sequence beside the last one's. ``sort``, only with ``top_p``: the whole vocabulary sorted.
"""

from dataclasses import dataclass

from estimator.llama import ITEMSIZE, LlamaShape
from estimator.price import Line, Price
from estimator.rounding import SMALL_BYTES, Footprint, Tensors, footprint

CARD = "card"
_SORT_PER_LOGIT, _SORT_FIXED_BYTES = 12.19, 8704
"""Working memory of the vocabulary's sort, measured."""


@dataclass(frozen=True)
class Call:
    """One ``generate``: everything its memory depends on beside the model."""

    batch: int
    prompt_tokens: int
    new_tokens: int
    padded: bool
    """Whether any prompt is filled up: one zero in the mask changes the path of all."""
    sampled: bool = False
    """Sampling with ``top_k`` and ``top_p``; else greedy."""

    def __post_init__(self) -> None:
        if min(self.batch, self.prompt_tokens, self.new_tokens) < 1:
            raise ValueError(f"batch, prompt_tokens and new_tokens must be 1 or more: {self}")


@dataclass(frozen=True)
class Peak:
    """The most that lives at once, and what it consists of."""

    moment: str
    tensors: tuple[Tensors, ...]
    allocated_bytes: int
    pools: Footprint
    """The most in each pool, not necessarily at that moment."""


PREFILL = ("feed-forward", "mask", "scores")
"""Moments of prefill; the others are of a decode step."""


def path_of(call: Call, peak: Peak) -> str:
    """The discrete path of a call: laws of different paths share no constants.

    ``long`` where keys and values of a layer live in the large pool beside the activations, ``short`` where they do
    not, ``decode`` where a decode step decides.
    """
    _, _, cached_bytes = peak.tensors[0]
    prefill = "long" if cached_bytes > SMALL_BYTES else "short"
    return ("padded " if call.padded else "plain ") + (prefill if peak.moment in PREFILL else "decode")


def peak_of(moments: dict[str, list[Tensors]]) -> Peak:
    """The largest of some moments."""
    held = {name: footprint(tensors) for name, tensors in moments.items()}
    name = max(held, key=lambda moment: held[moment].total_bytes)
    pools = Footprint(max(one.small_bytes for one in held.values()), max(one.large_bytes for one in held.values()))
    return Peak(name, tuple(moments[name]), held[name].total_bytes, pools)


def price_of(peak: Peak, account: str = CARD) -> Price:
    """The peak as a price, a line for each kind of tensor."""
    lines = []
    for what, count, one_bytes in peak.tensors:
        held = footprint([(what, count, one_bytes)])
        each = f", {count} of {one_bytes:,} B" if count > 1 else ""
        lines.append(Line(account, held.total_bytes, f"{peak.moment}: {what}{each}"))
    return Price.of(lines)


class GenerateLaw:
    """The peak of calls of one model, in bytes over its weights; `dtype` by name."""

    def __init__(self, shape: LlamaShape, dtype: str) -> None:
        self._shape = shape
        self.itemsize = self._e = ITEMSIZE[dtype]
        self._kv_width = shape.kv_heads * shape.head_dim * self._e
        self._q_width = shape.heads * shape.head_dim * self._e
        self._hidden = shape.hidden * self._e
        self._shared = shape.heads != shape.kv_heads
        self._streams = min(shape.layers, 2) + 1
        """Embedding, input of the last layer (the same in a model of one), normed input."""

    def peak(self, call: Call) -> Peak:
        """The largest moment of a call."""
        return peak_of(self.moments(call))

    def moments(self, call: Call) -> dict[str, list[Tensors]]:
        """What lives at each candidate for the peak."""
        found = {"feed-forward": self._feed_forward(call), "logits": self._logits(call)}
        if call.padded:
            found["mask"] = self._masked_prefill(call)
        elif self._e == 4 and self._shared:
            found["scores"] = self._scores(call)
        if call.new_tokens > 1:
            found["grow"] = self._grow(call)
            if call.padded:
                found["mask in decode"] = self._masked_decode(call)
            elif self._e == 4 and self._shared:
                found["scores in decode"] = self._scored_decode(call)
        if call.sampled:
            found["sort"] = self._sort(call)
        return found

    def _feed_forward(self, call: Call) -> list[Tensors]:
        tokens = call.batch * call.prompt_tokens
        return [
            *self._prefill(call),
            ("hidden states", self._streams + 1, tokens * self._hidden),
            ("gate, up and their product", 3, tokens * self._shape.ffn * self._e),
        ]

    def _masked_prefill(self, call: Call) -> list[Tensors]:
        tokens = call.batch * call.prompt_tokens
        return [
            *self._prefill(call),
            ("hidden states", self._streams, tokens * self._hidden),
            ("queries and attention output", 2, tokens * self._q_width),
            ("keys and values, repeated for each query head", 2 * self._shared, tokens * self._q_width),
            ("mask in the model's dtype", 1, tokens * _padded(call.prompt_tokens) * self._e),
            ("the kernel's seeds", 2, 8),
        ]

    def _scores(self, call: Call) -> list[Tensors]:
        tokens, heads = call.batch * call.prompt_tokens, self._shape.heads
        scores = heads * tokens * call.prompt_tokens
        return [
            *self._prefill(call),
            ("hidden states", self._streams, tokens * self._hidden),
            ("queries, scaled queries, repeated keys and values", 4, tokens * self._q_width),
            ("attention scores and weights in float32", 2, 4 * scores),
            ("which scores are masked", 1, scores),
            ("causal mask in float32", 1, 4 * call.prompt_tokens**2),
            ("which rows are masked", 1, heads * tokens),
            ("a scalar", 1, 4),
        ]

    def _grow(self, call: Call) -> list[Tensors]:
        return [
            *self._decode(call),
            ("hidden states of a step", self._streams, call.batch * self._hidden),
            ("queries of a step", 1, call.batch * self._q_width),
            ("keys and values of a step", 2, call.batch * self._kv_width),
            ("one layer's values before they grew", 1, call.batch * (self._end(call) - 1) * self._kv_width),
        ]

    def _masked_decode(self, call: Call) -> list[Tensors]:
        rows = call.batch * self._end(call)
        return [
            *self._decode(call),
            ("hidden states of a step", self._streams, call.batch * self._hidden),
            ("queries and attention output of a step", 2, call.batch * self._q_width),
            ("keys and values, repeated for each query head", 2 * self._shared, rows * self._q_width),
            ("mask in the model's dtype", 1, call.batch * _padded(self._end(call)) * self._e),
            ("the kernel's seeds", 2, 8),
        ]

    def _scored_decode(self, call: Call) -> list[Tensors]:
        rows = call.batch * self._end(call)
        return [
            *self._decode(call),
            ("hidden states of a step", self._streams, call.batch * self._hidden),
            ("queries and scaled queries of a step", 2, call.batch * self._q_width),
            ("keys, scaled keys and values, repeated for each query head", 3, rows * self._q_width),
            ("attention scores", 1, 4 * self._shape.heads * rows),
        ]

    def _logits(self, call: Call) -> list[Tensors]:
        rows = call.batch * self._shape.vocab
        copies = (1 if call.new_tokens == 1 else 2) * (2 if call.sampled and call.new_tokens > 1 else 1)
        return [
            ("keys and values of all layers", 2 * self._shape.layers, call.batch * self._end(call) * self._kv_width),
            ("token ids, masks, positions", 1, self._ids_bytes(call)),
            ("logits", 1, rows * self._e),
            ("logits in float32, of this step and the last", copies, 4 * rows),
        ]

    def _sort(self, call: Call) -> list[Tensors]:
        rows = call.batch * self._shape.vocab
        several = call.batch > 1
        return [
            ("keys and values of all layers", 2 * self._shape.layers, call.batch * self._end(call) * self._kv_width),
            ("token ids, masks, positions", 1, self._ids_bytes(call)),
            ("logits", 1, rows * self._e),
            ("scores and probabilities in float32", (3 if call.new_tokens == 1 else 5) + several, 4 * rows),
            ("sorted ids", 2 + several, 8 * rows),
            ("the sort's own memory", 1, int(_SORT_PER_LOGIT * rows) + _SORT_FIXED_BYTES),
        ]

    def _prefill(self, call: Call) -> list[Tensors]:
        """What lives all through prefill's last layer."""
        tokens = call.batch * call.prompt_tokens
        found = [
            ("keys and values of all layers", 2 * self._shape.layers, tokens * self._kv_width),
            ("rotary cosines and sines", 2, tokens * self._shape.head_dim * self._e),
            ("token ids, mask, positions", 4, 8 * tokens),
            ("flags", 3, 8 * call.batch),
        ]
        if call.padded:
            found.append(("mask of booleans", 1, tokens * call.prompt_tokens))
        return found

    def _decode(self, call: Call) -> list[Tensors]:
        """What lives all through the last decode step's last layer."""
        end, rows = self._end(call), call.batch * self._shape.vocab
        found = [
            ("keys and values of all layers", 2 * self._shape.layers, call.batch * end * self._kv_width),
            ("logits in float32, of the last step", 3 if call.sampled else 1, 4 * rows),
            ("token ids, masks, positions", 3, 8 * call.batch * (end + 1)),
            ("token ids, mask, positions of the prompt", 3, 8 * call.batch * call.prompt_tokens),
            ("rotary cosines and sines", 2, call.batch * self._shape.head_dim * self._e),
            ("flags", 6, 8 * call.batch),
        ]
        if call.padded:
            found.append(("mask of booleans", 1, call.batch * end))
        return found

    def _ids_bytes(self, call: Call) -> int:
        """The small integer tensors at the end of a step, each rounded by itself."""
        prompt, end = 8 * call.batch * call.prompt_tokens, 8 * call.batch * (self._end(call) + 1)
        longer, flags = (4, 6) if call.new_tokens > 1 else (3, 7)
        return footprint([("", 3, prompt), ("", longer, end), ("", flags, 8 * call.batch)]).total_bytes

    @staticmethod
    def _end(call: Call) -> int:
        return call.prompt_tokens + call.new_tokens - 1


def _padded(tokens: int) -> int:
    """The kernel wants rows of masks aligned to eight."""
    return -(-tokens // 8) * 8
