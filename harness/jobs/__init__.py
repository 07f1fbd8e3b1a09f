"""Cells of a grid as jobs of a scheduler: of submitit, whose jobs outlive the command, or of Ray."""
