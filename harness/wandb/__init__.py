"""The export of runs to wandb, by a process that reads a run's events.

It reads ``events.jsonl`` while the run trains or later, and nothing depends on it. Only ``server`` imports wandb.
"""
