"""Embedding clients: how rows and gradients travel between the trainer and the PS ranks.

``embedding_client`` has the interface and what all clients share; ``direct``, ``lookahead`` and ``staleness`` are one
client each, ``clients`` the table. Add a client by a class and an entry (docs/EXTENDING.md). A client awaits replies
and never sees a death; all that differs after a recovery is in ``shards_restored`` and ``reset``.
"""
