"""Ranks on several hosts, by a fork server on each."""
