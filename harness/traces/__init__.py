"""Failure traces: reading and writing (trace), planned kills of a run (schedule), import, generation, statistics.

From a public log: importers, then mapping. Generated: laws, spec, generate, presets; learn takes a spec from a trace.
Statistics: statistics (whole trace), levels (one kind of gap), gaps, fits, families, survival, bootstrap, verdict.
"""
