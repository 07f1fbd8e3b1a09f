"""The networks on top of the embedding rows: DLRM and other models, their optimizers; metrics of click prediction."""
