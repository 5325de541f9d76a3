"""Faults injected into the running service under load, and what its clients notice of them."""
