"""Pure functions and values: no I/O, no process, no clock, no global random state."""
