"""Fused kernels of a decode step on CUDA, in OpenAI Triton: few launches, every weight read once.

A small batch leaves a matrix product bound by reading the matrix, so a product is cut along its inner dimension until
all multiprocessors read at once; the partial sums, float32 [splits, tokens, out], are added by whichever kernel comes
next.
A layer is then nine launches: norm, qkv, store, attend, combine, out, norm, gate_up, down.
"""
