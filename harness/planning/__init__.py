"""Estimates of the cost of a run, by closed forms and by simulation."""
