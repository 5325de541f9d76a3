"""The KV cache: a fixed pool of pages, each holding keys and values of so many tokens for all layers."""

from collections.abc import Iterable

import torch

from estimator.llama import LlamaShape


class PageMap:
    """Which pages are free. Knows no tensors, so the scheduler is tested without any."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free = list(range(pages - 1, -1, -1))
        self._used: set[int] = set()

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages somebody holds."""
        return len(self._used)

    def fits(self, pages: int) -> bool:
        """Whether so many pages are free."""
        return pages <= len(self._free)

    def allocate(self, pages: int) -> list[int]:
        """Takes so many pages; raises ValueError when they are not free (ask ``fits`` first)."""
        if not self.fits(pages):
            raise ValueError(f"{pages} pages asked for, {self.free} free")
        taken = [self._free.pop() for _ in range(pages)]
        self._used.update(taken)
        return taken

    def release(self, pages: Iterable[int]) -> None:
        """Gives pages back; raises ValueError for one that is not held."""
        for page in pages:
            if page not in self._used:
                raise ValueError(f"page {page} is given back but nobody holds it")
            self._used.remove(page)
            self._free.append(page)

    def check(self, holders: Iterable[Iterable[int]]) -> None:
        """Raises ValueError with the whole equation unless `holders` account for every page that is not free."""
        held = [page for pages in holders for page in pages]
        whole = len(held) == len(set(held)) and set(held) == self._used and self.used + self.free == self.pages
        if not whole or set(held) & set(self._free):
            raise ValueError(
                f"free {self.free} + used {self.used} = {self.free + self.used} of {self.pages} pages; "
                f"holders have {len(held)} ({len(set(held))} distinct), "
                f"not held but used {sorted(self._used - set(held))}, held but free {sorted(set(held) - self._used)}"
            )


class PagePool:
    """The memory behind the pages, on the device.

    One tensor [pages + 1, layers, 2, page_tokens, kv_heads, head_dim], so that the bytes of a page lie together. The
    last page is never lent: padding and warm-up write there.
    """

    def __init__(
        self, shape: LlamaShape, pages: int, page_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.page_tokens = page_tokens
        self.dtype = dtype
        self.device = device
        self.pages = pages
        self.trash = pages
        """Index of the page that takes what nobody reads."""
        # Zeros, not garbage: masked positions are read and multiplied by zero, and 0 x NaN is NaN.
        self._memory = torch.zeros(
            (pages + 1, shape.layers, 2, page_tokens, shape.kv_heads, shape.head_dim), dtype=dtype, device=device
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the pool, padding page included."""
        return self._memory.nbytes

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each a view [pages + 1, page_tokens, kv_heads, head_dim]."""
        return self._memory[:, index, 0], self._memory[:, index, 1]

    def clear(self, pages: Iterable[int]) -> None:
        """Writes zeros over pages that may hold what is no number."""
        for page in pages:
            self._memory[page].zero_()
