"""Weight formats: q8_0, in ggml's bytes, and ternary. One module a format."""

from __future__ import annotations

from splitbit_kit.api import Quantizer, QuantizerOffer, hookimpl

# The builders are not named as their formats: importing a submodule would replace such a name.


def build_q8_0() -> Quantizer:
    """Return the quantizer of ggml's Q8_0."""
    from splitbit_kit.bundled.quantizers.q8_0 import Q8_0

    return Q8_0()


def build_ternary() -> Quantizer:
    """Return the quantizer of BitNet b1.58."""
    from splitbit_kit.bundled.quantizers.ternary import Ternary

    return Ternary()


@hookimpl
def quantizers() -> list[QuantizerOffer]:
    """Offer both."""
    return [
        QuantizerOffer(
            "q8_0", "ggml's Q8_0: 8 bits and a scale for 32 weights, 8.5 in all", build_q8_0
        ),
        QuantizerOffer(
            "ternary", "-1, 0 or 1 times a tensor's mean magnitude, 2 bits", build_ternary
        ),
    ]
