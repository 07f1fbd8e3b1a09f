"""Overhead and PLS of a run before it is run, by closed form and simulation.

It charges by the ledgers of ``recovery``, so that plan, run and audit cannot differ.
"""
