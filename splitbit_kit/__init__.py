"""Train, quantise and run small language models on ordinary CPUs, with plugins at every joint.

    import splitbit_kit

    run = splitbit_kit.train("nanogpt-laptop", data="texts/", out="runs/bard")
    model = splitbit_kit.load(run.folder)
    print(model.generate("ROMEO:", max_tokens=200))

See docs/python.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from splitbit_kit.model import Model, load
    from splitbit_kit.training.run import Run, resume, train

__version__ = "0.1.0"
__all__ = ["Model", "Run", "__version__", "load", "resume", "train"]

_HOMES = {
    "Model": "splitbit_kit.model",
    "load": "splitbit_kit.model",
    "Run": "splitbit_kit.training.run",
    "resume": "splitbit_kit.training.run",
    "train": "splitbit_kit.training.run",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line needs its version without NumPy."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
