"""Compiled loops over rows, records and batches. Each has a plain twin that a test compares it with."""
