"""Cells of a grid as jobs of submitit, which outlive the command, or as tasks of Ray.

``clusters`` speaks with the scheduler, ``pool`` and ``ray_pool`` follow the cells, ``cell_job`` is the program of a
job. A further scheduler is a class in ``clusters``.
"""
