"""The record of a run: its folder, its events, and wandb, which is a view of them."""
