"""Run it, within its price: the engines inside Triton's processes."""
