"""A stranger on the card: ``python -m loadtests.chaos.neighbour SECONDS`` takes all that is free, and gives it back."""

import sys
import time

import torch

STEP_BYTES = 64 * 2**20
PIECE_BYTES = 2**30


def take_all() -> list[torch.Tensor]:
    """Everything the driver still gives, in pieces that get smaller."""
    held, piece_bytes = [], PIECE_BYTES
    while piece_bytes >= STEP_BYTES:
        try:
            held.append(torch.empty(piece_bytes, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            piece_bytes //= 2
    return held


def main() -> None:
    """Says ``taken`` and ``given back``, with the monotonic time of each."""
    held = take_all()
    print("taken", time.monotonic(), sum(piece.nbytes for piece in held), flush=True)
    time.sleep(float(sys.argv[1]))
    held.clear()
    torch.cuda.empty_cache()
    print("given back", time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
