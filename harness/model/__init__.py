"""The networks on top of the embedding rows, their optimizers, and metrics.

``models`` has one torch module for each model, and is the table to add to; ``dlrm`` with its backends is DLRM written
for speed, held to its module. Mathematics alone: no rank, file or clock.
"""
