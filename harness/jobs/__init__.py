"""Cells of a grid as jobs of SLURM, which outlive the command, or as tasks of Ray.

``slurm`` and ``ray_pool`` speak with the scheduler, ``pool`` follows the jobs of SLURM, ``cell_job`` is their program.
"""
