"""Click logs: text formats, packed binary records, deterministic batches, and a synthetic log."""
