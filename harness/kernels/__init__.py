"""Compiled loops over rows, records and batches. A test compares each with a plain implementation."""
