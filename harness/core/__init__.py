"""Values and decisions, pure: no file, process, clock or global random state.

Formulas of the papers, strategies, trackers, ledgers, faults, shards, optimizers, and the facts and events that rooms
exchange. Strategies, trackers, faults and optimizers are tables that a file of your own may add to. What is here can be
tested by calling it; nothing here may import another room than ``kernels``.
"""
