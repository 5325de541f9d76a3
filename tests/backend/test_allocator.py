import ctypes
import os

import torch

from backend import allocator
from common.readings import resident_bytes

BLOCK_BYTES, BLOCKS = 64 * 1024, 1024


def test_freed_heap_goes_back_on_the_cpu() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    blocks = [libc.malloc(BLOCK_BYTES) for _ in range(BLOCKS + 1)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK_BYTES)
    pin = blocks.pop()
    for block in blocks:
        libc.free(block)
    before_bytes = resident_bytes(os.getpid())
    given_bytes = allocator.release_free_segments(torch.device("cpu"))
    libc.free(pin)
    assert given_bytes > BLOCK_BYTES * BLOCKS // 2
    assert resident_bytes(os.getpid()) < before_bytes - BLOCK_BYTES * BLOCKS // 2
