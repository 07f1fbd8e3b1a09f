"""The export of runs to wandb: a separate process reads a run's ``events.jsonl``, while the run trains or later."""
