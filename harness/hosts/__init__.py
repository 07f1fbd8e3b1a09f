"""Ranks on several hosts: an agent on each starts, watches and kills them."""
