"""What happens when ranks die: requests through failures, restoration, planned faults, charges.

``requests`` sends what the step loop awaits, ``failover`` replaces and restores, ``kinds``, ``means``, ``mirror`` and
``parity`` are the kinds of recovery and ``recoveries`` their table, ``checkpointer`` saves, ``injections`` and
``interrupts`` have planned faults carried out, ``notices`` serves ranks that are told of their death, ``accounting``
charges. Add a kind of recovery by a class and an entry. When a recovery begins is decided in ``run/trainer.py`` alone.
"""
