"""Overhead and PLS of a run before it is run, by simulation.

It charges by the ledgers of ``recovery``, so that plan, run and audit cannot differ.
"""
