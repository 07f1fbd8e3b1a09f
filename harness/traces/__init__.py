"""Failure traces: reading and writing (trace), planned faults of a run (schedule), import, generation, statistics.

Modules for traces from public logs: importers, then mapping. For generated traces: spec, generate, regime; learn makes
a spec from a trace. For a job's part of a trace: job_trace, mismatch. For statistics: gaps, fits, statistics.
"""
