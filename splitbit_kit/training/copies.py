"""The quantised copies of a run's models: of the best one, and of checkpoints.

`best/model-NAME.safetensors` is never of another model than the `best/model.safetensors` beside it:
whoever replaces that one deletes the copies first (`checkpoint.replace_model`). A process killed
before it made the new copy leaves none; `mend` makes it when the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from splitbit_kit.api import SplitbitError, UsageError
from splitbit_kit.formats import checkpoint, packed, safetensors
from splitbit_kit.formats.packed import Weights
from splitbit_kit.formats.safetensors import Tensors
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.quantize import Format, pack, packed_format, reason_kept
from splitbit_kit.registry import Registry
from splitbit_kit.training.config import QuantizeConfig
from splitbit_kit.training.run_folder import MODEL
from splitbit_kit.weights import frozen_decoder


class Copies:
    """Makes the copies of one run; `form` None makes none.

    What fails is told and stops nothing: the copy can be made again from the model at any time.
    """

    def __init__(
        self,
        form: Format | None,
        best: Path,
        registry: Registry,
        notify: Callable[[str], None],
    ) -> None:
        self.form = form
        self._registry = registry
        self._best = best
        self._notify = notify

    @property
    def of_best(self) -> Path | None:
        """Where the copy of the best model belongs; None if there is to be none."""
        if self.form is None:
            return None
        return self._best / f"{checkpoint.copy_name(self.form.name)}.safetensors"

    def write(self, model: Tensors) -> None:
        """Pack the best model, which was just written. An older copy of it is gone already."""
        copy = self.of_best
        if copy is not None and (file := self._packed(model)) is not None:
            try:
                safetensors.write(copy, *file)
            except SplitbitError as error:
                self._notify(str(error))

    def mend(self) -> None:
        """Make the copy of the best model if it is not there, or was made with other options."""
        model = self._best / MODEL
        if self.form is None or not model.exists():
            return
        try:
            best = safetensors.read(model)
            if not self._stands(best):
                self.write(best)
        except SplitbitError as error:
            self._notify(str(error))

    def _stands(self, best: Tensors) -> bool:
        held = self._read()
        if held is None or held.packing is None or self.form is None:
            return False
        of_it = all(held.metadata.get(key) == text for key, text in best.metadata.items())
        return of_it and dict(held.packing.options) == dict(self.form.options)

    def _read(self) -> Weights | None:
        """Return the copy of the best model, mapped; None if there is none, or none that is whole.

        Let go of it soon: some systems do not replace a file that is mapped.
        """
        copy = self.of_best
        if copy is None or not copy.exists():
            return None
        try:
            return packed.decode(safetensors.read(copy), str(copy))
        except SplitbitError:
            return None

    def decoder(self, model: ModelConfig, vocabulary: int, dtype: np.dtype[Any]) -> Decoder | None:
        """Return the copy of the best model, ready to be evaluated; None if there is none."""
        weights = self._read()
        if weights is None:
            return None
        origin = str(self.of_best)
        return frozen_decoder(weights, model, vocabulary, dtype, self._registry, origin)

    def beside(self, model: Tensors) -> dict[str, Tensors]:
        """Return the copy that goes into a checkpoint, by the name of its file."""
        file = self._packed(model)
        if file is None or self.form is None:
            return {}
        return {checkpoint.copy_name(self.form.name): file}

    def _packed(self, model: Tensors) -> Tensors | None:
        if self.form is None:
            return None
        try:
            return packed.encode(pack(model, self.form), f"model packed as {self.form.name}")
        except SplitbitError as error:
            self._notify(f"no copy is made: {error}")
            return None


def chosen_format(
    config: QuantizeConfig, model: ModelConfig, registry: Registry, notify: Callable[[str], None]
) -> Format | None:
    """Return the format that a run packs its models in; None if it makes no copies.

    notify is told of each matrix that the format has no room for. Raises UsageError if there is no
    such format, or none of the matrices fits.
    """
    if config.format == "none":
        return None
    form = packed_format(registry, config.format, config.options)
    shapes = {spec.name: spec.shape for spec in parameter_specs(model, 1) if len(spec.shape) == 2}
    kept: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        if reason := reason_kept(name, shape, form):
            kept.setdefault(reason, []).append(name)
    if sum(map(len, kept.values())) == len(shapes):
        raise UsageError(
            f"quantizer {form.name}: it has no room for any matrix of this model "
            f"({'; '.join(kept)}); choose another --quantizer, or none"
        )
    kept.pop("position embedding", None)
    for reason, names in kept.items():
        notify(f"quantizer {form.name}: {reason}; kept as they are: {', '.join(names)}")
    return form
