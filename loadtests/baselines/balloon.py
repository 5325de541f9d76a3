"""A process that holds a CUDA card but for some bytes, so that whoever comes next meets a smaller card.

``python -m loadtests.baselines.balloon --leave 24GiB`` says ``holding`` and stays until it is stopped.
"""

import argparse
import signal

import torch
from pydantic import ByteSize, TypeAdapter


def main() -> None:
    """Holds until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.baselines.balloon", description=__doc__)
    parser.add_argument("--leave", required=True, help="bytes that stay free, as 24GiB")
    leave_bytes = int(TypeAdapter(ByteSize).validate_python(parser.parse_args().leave))
    torch.zeros(1, device="cuda")
    free_bytes, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free_bytes - leave_bytes), dtype=torch.uint8, device="cuda")
    print(f"holding {held.nbytes} bytes, {torch.cuda.mem_get_info()[0]} are left", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
