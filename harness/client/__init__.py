"""How embedding rows travel between the trainer and the PS ranks."""
