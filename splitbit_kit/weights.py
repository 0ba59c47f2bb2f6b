"""Weights that are read only: from a model file to a decoder, without a copy where it can be."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import PackedTensor, Param, Quantizer, SplitbitError
from splitbit_kit.engine.params import ParameterStore, check_tensors
from splitbit_kit.formats.packed import Packing, Weights
from splitbit_kit.formats.untrusted import shown
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.quantize import check_arrays
from splitbit_kit.registry import Registry

Array = np.ndarray[Any, np.dtype[Any]]


def frozen_decoder(
    weights: Weights,
    config: ModelConfig,
    vocabulary: int,
    dtype: np.dtype[Any],
    registry: Registry,
    origin: str,
) -> Decoder:
    """Return a decoder on the weights of a file, all checked.

    Packed weights stay packed; plain ones stay mapped where dtype and alignment allow. Raises
    SplitbitError naming the weight that is not what the configuration says.
    """
    specs = parameter_specs(config, vocabulary)
    check_tensors(weights.arrays, specs, origin)
    _check_packed(weights, registry, origin)
    frozen = {
        spec.name: Param(spec.name, _value(weights.arrays[spec.name], dtype), trainable=False)
        for spec in specs
    }
    return Decoder(config, ParameterStore(specs, dtype, frozen))


def _value(value: Array | PackedTensor, dtype: np.dtype[Any]) -> Array | PackedTensor:
    if isinstance(value, PackedTensor):
        return value
    array = np.require(value, dtype, ["C", "A"])
    array.flags.writeable = False
    return array


def _check_packed(weights: Weights, registry: Registry, origin: str) -> None:
    quantizers: dict[str, Quantizer] = {}
    for name, value in weights.arrays.items():
        if isinstance(value, PackedTensor):
            form = value.format
            if form not in quantizers:
                assert weights.packing is not None
                quantizers[form] = _quantizer(form, weights.packing, registry, origin)
            check_arrays(value, quantizers[form], f"{origin}: tensor {name}, packed as {form}")


def _quantizer(form: str, packing: Packing, registry: Registry, origin: str) -> Quantizer:
    try:
        quantizer: Quantizer = registry.build("quantizer", form)
    except SplitbitError as error:
        plugin = packing.plugins.get(form)
        # a file may name any distribution: nobody should install one without a thought
        hint = f"; it was packed with the plugin {shown(plugin)}: install that if you trust it"
        raise SplitbitError(f"{origin}: {error}{hint if plugin else ''}") from error
    return quantizer
