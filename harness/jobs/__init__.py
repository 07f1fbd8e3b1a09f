"""Cells of a grid as jobs of submitit, which outlive the command, or as tasks of Ray, which do not."""
