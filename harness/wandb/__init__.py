"""wandb as a follower of runs: one process exports a run's ``events.jsonl``, while it goes on or later."""
