"""Validated configurations, from YAML files and the command line.

``model`` has the keys, their types and bounds, ``combinations`` what does not go together, ``derived`` what follows.
Add a key in ``model``: its description is its help, and the hash of a run has it unless it says otherwise. No other
room checks a key.
"""
