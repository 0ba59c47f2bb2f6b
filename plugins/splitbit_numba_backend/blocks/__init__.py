"""The fused ops, one module each: the programs, and the Python that prepares their arguments."""
