"""Failure traces: reading and writing (trace), planned kills of a run (schedule), import, generation, statistics.

From a public log: importers, then mapping. Generated: laws, spec, generate, presets, regime; learn takes a spec from a
trace. Their key=value words: config/words. A job's part of a trace: job_trace, mismatch. Statistics:
gaps, fits, verdict, statistics.
"""
