"""Cells of a grid as jobs of a scheduler, which outlive the command that has submitted them."""
