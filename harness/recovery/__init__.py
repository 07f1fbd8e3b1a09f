"""Recovery from the death of ranks: failover, checkpoints, accounting."""
