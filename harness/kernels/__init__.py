"""Compiled loops over rows, records and batches. Tests compare them with plain implementations."""
