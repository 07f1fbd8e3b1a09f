"""Processes of one machine: how they are started, end with one another, and have a network to themselves."""
