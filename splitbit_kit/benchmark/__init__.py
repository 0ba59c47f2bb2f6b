"""How fast a training step is on this machine: beside its limit, by op, and beside PyTorch.

`compare` lets processes take turns (`turns`); `ours` and `torch_peer` are what such a process runs,
the latter in an interpreter of its own, for nothing here imports torch but that file. `by_op` times
the parts of a step, and `work` says how much arithmetic each of them is.
"""
