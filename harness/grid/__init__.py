"""Execution of many runs: the cells of an experiment."""
