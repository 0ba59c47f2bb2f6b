"""Record what others make of the same weights: python record_quantizers.py gguf|torch FILE

gguf: the bytes of Q8_0 by llama.cpp's own package of that name, as SHA-256. torch: the scale and
the codes of BitNet b1.58's weight_quant, as its authors wrote it ("The Era of 1-bit LLMs: Training
Tips, Code and FAQ", 2024), in float32. The tests need neither package. Each run replaces one part
of FILE.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
from quantizer_cases import cases


def from_gguf() -> dict[str, str]:
    """Return name -> SHA-256 of the Q8_0 bytes."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    kind = GGMLQuantizationType.Q8_0
    return {name: sha256(quantize(w, kind).tobytes()).hexdigest() for name, w in cases().items()}


def from_torch() -> dict[str, dict[str, object]]:
    """Return name -> scale and SHA-256 of the codes, an int8 each, of weights that are not tiny."""
    import torch

    found: dict[str, dict[str, object]] = {}
    for name in ("normal", "small", "heavy-tailed", "constant", "one outlier", "ties"):
        w = torch.from_numpy(cases()[name])
        scale = 1.0 / w.abs().mean().clamp_(min=1e-5)
        codes = (w * scale).round().clamp_(-1, 1).numpy().astype(np.int8)
        found[name] = {"scale": float(1 / scale), "codes": sha256(codes.tobytes()).hexdigest()}
    return found


part, file = sys.argv[1], Path(sys.argv[2])
recorded = json.loads(file.read_text("utf-8")) if file.exists() else {}
recorded[part] = {"gguf": from_gguf, "torch": from_torch}[part]()
file.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", "utf-8")
