"""The record of a run: its folder and its events."""
