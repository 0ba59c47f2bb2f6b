"""Train, quantise and run small language models on ordinary CPUs, with plugins at every joint."""

__version__ = "0.1.0"
