"""Pure parts: values and tensors in, values and tensors out. No I/O, process, clock or global RNG."""
