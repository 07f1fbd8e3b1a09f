"""What happens when ranks die: requests through failures, restoration, planned faults, charges.

``requests`` sends what the step loop awaits, ``failover`` replaces and restores, ``kinds`` and ``mirror`` are the kinds
of recovery and ``recoveries`` their table, ``checkpointer`` saves, ``injections`` strikes, ``accounting`` charges. Add
a kind of recovery by a class and an entry. When a recovery begins is decided in ``run/trainer.py`` alone.
"""
