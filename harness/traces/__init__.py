"""Failure traces: files, public logs, generators, statistics, and the faults of a run.

``trace`` reads and writes; ``importers`` and ``mapping`` make traces of public logs, ``draw``, ``learn``, ``spec`` and
``generate`` make them by laws; ``job_trace`` and ``schedule`` turn a trace into the planned faults of a run; ``gaps``,
``fits`` and ``statistics`` measure one. Add a log format by a function and an entry in ``importers``.
"""
