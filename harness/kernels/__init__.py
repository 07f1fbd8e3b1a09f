"""Compiled loops over rows, records and batches.

Each has a plain twin that tests hold it to, bit for bit. Only this room imports numba. A loop is written here once a
profile has shown that it pays.
"""
