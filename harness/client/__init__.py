"""Embedding clients: transport of embedding rows and gradients between the trainer and the PS ranks."""
