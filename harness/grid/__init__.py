"""Many runs: the cells of an experiment, each in a process of its own.

``experiments`` makes cells of an experiment file, ``runner`` runs and resumes them, ``worker`` is the process of a
cell. What a cell does is in ``run``.
"""
