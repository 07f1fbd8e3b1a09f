"""The execution of one run, from its configuration to its last event."""
