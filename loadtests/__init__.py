"""Load campaigns, benchmarks, and the naive services they are compared with."""
