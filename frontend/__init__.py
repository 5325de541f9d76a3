"""May it run now? The HTTP service that owns the ledger."""
