"""Processes of one machine: how they are forked, end with one another, and have a network to themselves."""
