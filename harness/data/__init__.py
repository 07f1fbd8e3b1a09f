"""Click logs: Criteo's text format, packed binary records, deterministic batches, and a synthetic log."""
