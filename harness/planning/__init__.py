"""Estimates of the overhead and PLS of a run, by closed forms and by simulation."""
