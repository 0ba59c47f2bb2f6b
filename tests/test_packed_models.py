"""Models whose weights stay packed: equal to their dequantised twins, in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from splitbit_kit.api import (
    PackedTensor,
    Param,
    QuantizerOffer,
    SplitbitError,
    UsageError,
    hookimpl,
)
from splitbit_kit.compute import choose
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.engine.tape import Tape
from splitbit_kit.formats import checkpoint, packed, safetensors
from splitbit_kit.formats.safetensors import Tensors
from splitbit_kit.model import Model, load
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import parameter_specs
from splitbit_kit.quantize import Format, pack, packed_format
from splitbit_kit.registry import Registry
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.training.config import Config
from splitbit_kit.training.learner import plan
from splitbit_kit.training.run_folder import ModelHeader, RunFolder, model_tensors

Array = np.ndarray[Any, np.dtype[Any]]

LLAMA = ModelConfig("llama", layers=2, heads=4, kv_heads=2, width=32, hidden=96, context=256)
GPT2 = ModelConfig("gpt2", layers=2, heads=2, width=32, context=256, bias=True, tied=False)
TOKENIZER = Tokenizer.train("byte", [])
V = TOKENIZER.vocab_size
TEXT = "All's well that ends well. " * 20


class Half:
    """A stranger's format: float16 in two arrays, the sign apart. It knows no other package."""

    widths = (16,)

    def layout(self, shape: tuple[int, int]) -> Any:
        if shape[1] % 8:
            raise ValueError(f"rows of {shape[1]} do not divide by 8")
        return {"size": (np.float16, shape), "sign": (np.int8, shape)}

    def pack(self, w: Array, calibration: Any = None) -> PackedTensor:
        arrays = {"size": np.abs(w).astype(np.float16), "sign": np.sign(w).astype(np.int8)}
        return PackedTensor("half", w.shape, arrays, {"by": "a stranger"})

    def unpack(self, p: PackedTensor, bits: Any = None, rows: slice = slice(None)) -> Array:
        return p.arrays["size"][rows].astype(np.float32) * p.arrays["sign"][rows]

    def round(self, w: Array) -> Array:
        return self.unpack(self.pack(w))


def plugin(*builds: Any, name: str = "half") -> Any:
    @hookimpl
    def quantizers() -> list[QuantizerOffer]:
        return [QuantizerOffer(name, "a test", build) for build in builds]

    return SimpleNamespace(quantizers=quantizers)


OURS = Registry()
WITH_HALF = Registry(extra={"half": plugin(Half)})
FORMATS = ["q8_0", "ternary", "half"]


def tensors(config: ModelConfig) -> Tensors:
    specs = parameter_specs(config, V)
    params = ParameterStore(specs)
    params.initialise(specs, 1)
    for param in params:
        param.array[...] *= 5  # so that a model without training prefers some tokens
    header = ModelHeader(config, V, TOKENIZER.sha256, 1, 1.5, np.ones(V, np.bool_))
    return model_tensors(params, header)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds a tokenizer: a model file is a model in there."""
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.content)
    return tmp_path


def written(folder: Path, model: Tensors, form: str, registry: Registry = WITH_HALF) -> Path:
    path = folder / f"model-{form}.safetensors"
    file = packed.encode(pack(model, packed_format(registry, form)), "a test")
    safetensors.write(path, *file)
    return path


def twin(folder: Path, model: Tensors, form: str) -> Path:
    """Write the same model with plain weights, as they read after packing."""
    weights = pack(model, packed_format(WITH_HALF, form))
    quantizer = WITH_HALF.build("quantizer", form)
    plain = {
        name: quantizer.unpack(value) if isinstance(value, PackedTensor) else value
        for name, value in weights.arrays.items()
    }
    path = folder / f"twin-{form}.safetensors"
    safetensors.write(path, plain, model.metadata)
    return path


def opened(path: Path, registry: Registry = WITH_HALF, **more: Any) -> Model:
    return load(path, **{"backend": "numpy", "threads": 1, "registry": registry, **more})


# ---- which weights


def test_matrices_are_packed_and_the_others_are_not() -> None:
    weights = pack(tensors(GPT2), packed_format(OURS, "q8_0"))
    found = {name for name, value in weights.arrays.items() if isinstance(value, PackedTensor)}
    assert found == {
        "tok.weight",
        "head.weight",
        *(f"layers.{i}.attn.{m}.weight" for i in (0, 1) for m in "qkvo"),
        *(f"layers.{i}.mlp.{m}.weight" for i in (0, 1) for m in ("up", "down")),
    }
    assert weights.packing is not None
    kept = dict(weights.packing.kept)
    assert kept.pop("pos.weight") == "position embedding"
    assert set(kept.values()) == {"not a matrix"}
    assert found | {*kept, "pos.weight"} == set(weights.arrays)


def test_a_tied_head_is_stored_once() -> None:
    assert "head.weight" not in pack(tensors(LLAMA), packed_format(OURS, "q8_0")).arrays


def test_rows_without_room_stay_as_they_are_and_are_listed(folder: Path) -> None:
    config = ModelConfig("llama", layers=1, heads=4, width=32, hidden=172, context=32)
    model = tensors(config)
    path = written(folder, model, "q8_0")
    found = packed.decode(safetensors.read(path), str(path))
    down = "layers.0.mlp.down.weight"
    assert found.packing is not None
    assert found.packing.kept[down] == "rows of 172 do not divide into blocks of 32"
    assert np.array_equal(found.arrays[down], model.arrays[down])
    assert isinstance(found.arrays["layers.0.mlp.up.weight"], PackedTensor)
    assert opened(path).logits("abc").shape == (3, V)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(bad: float) -> None:
    arrays, metadata = tensors(LLAMA)
    arrays = {name: array.copy() for name, array in arrays.items()}
    arrays["layers.1.mlp.up.weight"][5, 3] = bad
    with pytest.raises(SplitbitError, match=r"layers\.1\.mlp\.up\.weight: .*row 5, block 0: .* is"):
        pack(Tensors(arrays, metadata), packed_format(OURS, "q8_0"))


# ---- equal to the twin


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=lambda config: config.family)
@pytest.mark.parametrize("form", FORMATS)
def test_a_packed_model_equals_its_dequantised_twin(
    folder: Path, config: ModelConfig, form: str
) -> None:
    model = tensors(config)
    one, other = opened(written(folder, model, form)), opened(twin(folder, model, form))
    np.testing.assert_allclose(one.logits(TEXT[:99]), other.logits(TEXT[:99]), rtol=1e-5, atol=1e-4)
    found, expected = one.evaluate(TEXT), other.evaluate(TEXT)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.tokens == expected.tokens
    text = one.generate("All", max_tokens=200, temperature=0)
    assert text == other.generate("All", max_tokens=200, temperature=0)
    assert len(set(text)) > 3  # not one token over and over


@pytest.mark.parametrize("form", FORMATS)
def test_weights_stay_packed(folder: Path, form: str) -> None:
    model = opened(written(folder, tensors(LLAMA), form))
    assert model.decoder.params.values.size == 0
    for spec in parameter_specs(LLAMA, V):
        param = model.decoder.params[spec.name]
        assert not param.trainable
        assert isinstance(param.value, PackedTensor) == (len(spec.shape) == 2)
    assert model.decoder.head is model.decoder.tok
    assert model.parameters == sum(a.size for a in tensors(LLAMA).arrays.values())


def test_precision_fp64_computes_on_packed_weights_too(folder: Path) -> None:
    path = written(folder, tensors(LLAMA), "q8_0")
    exact, single = opened(path, precision="fp64").logits("abc"), opened(path).logits("abc")
    assert exact.dtype == np.float64
    np.testing.assert_allclose(single, exact, rtol=1e-4, atol=1e-4)


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """A matrix of 64 MB decoded is multiplied, and rows of it gathered, in a few."""
    compute = choose(OURS, "numpy", threads=1)
    quantizer = OURS.build("quantizer", "q8_0")
    w = np.tile(np.linspace(-1, 1, 1024, dtype=np.float32), (16_384, 1))
    handle = Param("w", quantizer.pack(w), trainable=False)
    x = np.ones((4, 1024), np.float32)
    ids = np.array([3, 16_383, 3], np.int32)
    expected = x @ w.T
    tape = Tape(compute.table(train=False), compute.context())
    tape.linear(x[:, :], handle)
    tracemalloc.start()
    out = tape.linear(x, handle)
    rows = tape.embedding(ids, handle)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(out, expected, rtol=1e-2, atol=1)
    assert rows.shape == (3, 1024)
    assert peak < 16 * 2**20  # the matrix is 64 MB


# ---- models as files


def test_a_file_in_a_run_is_a_model(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "bard")
    run.begin(Config(), TOKENIZER)
    model = tensors(LLAMA)
    checkpoint.replace_model(run.best, model)
    copy = written(run.best, model, "q8_0")
    step = checkpoint.save(
        run.checkpoints,
        {"model": model, "model-q8_0": packed.encode(pack(model, packed_format(OURS, "q8_0")), "")},
        {"step": 3},
    )
    expected = opened(copy).logits("abc")
    assert opened(copy).label == f"model {copy}"
    assert np.array_equal(opened(step / "model-q8_0.safetensors").logits("abc"), expected)
    assert opened(run.path).label == f"best model of {run.path}"
    assert not np.array_equal(opened(run.path).logits("abc"), expected)
    (step / "model-q8_0.safetensors").write_bytes(copy.read_bytes()[:-1])
    with pytest.raises(SplitbitError, match="manifest"):
        opened(step / "model-q8_0.safetensors")


def test_a_file_alone_needs_its_tokenizer(folder: Path) -> None:
    path = written(folder, tensors(LLAMA), "q8_0")
    assert opened(path).logits("abc").shape == (3, V)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SplitbitError, match=r"no tokenizer\.json beside it"):
        opened(path)
    with pytest.raises(UsageError, match="no such file or folder"):
        opened(folder / "model-q9.safetensors")


def test_a_format_that_nobody_offers_names_the_plugin_that_packed_it(folder: Path) -> None:
    path = written(folder, tensors(LLAMA), "half")
    with pytest.raises(
        SplitbitError,
        match=r"half\.safetensors: quantizer half: there is no such .* packed with the plugin "
        r"'local': install that if you trust it",
    ):
        opened(path, OURS)


def changed(path: Path, name: str, **keys: Any) -> None:
    """Change what the file says of a weight."""
    arrays, metadata = safetensors.read(path)
    note = json.loads(metadata["packed"])
    note["tensors"][name].update(keys)
    arrays = {name: array.copy() for name, array in arrays.items()}
    safetensors.write(path, arrays, {**metadata, "packed": json.dumps(note)})


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("layers.0.attn.k.weight", {"shape": [16, 64]}, r"k.weight has shape \(16, 64\), the conf"),
        ("layers.0.attn.k.weight", {"shape": [16, 30]}, r"k.weight has shape \(16, 30\), the conf"),
        ("layers.0.attn.k.weight", {"format": "ternary"}, "arrays blocks; codes, scale expected"),
        ("layers.0.attn.k.weight", {"format": "q9"}, "quantizer q9: there is no such quantizer"),
        (
            "layers.0.attn.k.weight",
            {"arrays": []},
            "k.weight:blocks' is not of the configured model",
        ),
        ("tok.weight", {"shape": [2**45, 32]}, "metadata vocabulary"),
    ],
)
def test_packed_weights_that_lie_are_refused(
    folder: Path, name: str, keys: dict[str, Any], said: str
) -> None:
    path = written(folder, tensors(LLAMA), "q8_0")
    changed(path, name, **keys)
    with pytest.raises(SplitbitError, match=said) as error:
        opened(path)
    assert "\n" not in str(error.value)


def test_arrays_too_small_for_the_shape_are_refused_before_anything_is_decoded(
    folder: Path,
) -> None:
    path = written(folder, tensors(LLAMA), "q8_0")
    arrays, metadata = safetensors.read(path)
    arrays = {name: array.copy() for name, array in arrays.items()}
    name = "layers.0.mlp.up.weight"
    for cut in (arrays[f"{name}:blocks"][:, :33], arrays[f"{name}:blocks"].view(np.int8)):
        safetensors.write(path, {**arrays, f"{name}:blocks": cut}, metadata)
        with pytest.raises(SplitbitError, match=rf"tensor {name}, packed as q8_0: array blocks is"):
            opened(path)


def test_a_file_cut_short_anywhere_is_refused(folder: Path) -> None:
    path = written(folder, tensors(LLAMA), "q8_0")
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(SplitbitError, match="model-q8_0"):
            opened(path)


# ---- quantizers that misbehave


class Bad(Half):
    pass


class RaisesInLayout(Bad):
    def layout(self, shape: tuple[int, int]) -> Any:
        raise KeyError("size")


class RaisesInPack(Bad):
    def pack(self, w: Array, calibration: Any = None) -> PackedTensor:
        raise RuntimeError("no luck")


class PacksOtherArrays(Bad):
    def pack(self, w: Array, calibration: Any = None) -> PackedTensor:
        return PackedTensor("half", w.shape, {"size": w.astype(np.float16)})


class PacksAnotherShape(Bad):
    def pack(self, w: Array, calibration: Any = None) -> PackedTensor:
        return super().pack(w.T)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (RaisesInLayout, "quantizer half of local failed: KeyError"),
        (RaisesInPack, "quantizer half of local failed: RuntimeError: no luck"),
        (PacksOtherArrays, "arrays size; sign, size expected"),
        (PacksAnotherShape, r"packed as half by local: shape \(32, 257\)"),
    ],
)
def test_a_quantizer_that_packs_badly_is_named(build: Any, said: str) -> None:
    form: Format = packed_format(Registry(extra={"half": plugin(build)}), "half")
    with pytest.raises(SplitbitError, match=said):
        pack(tensors(LLAMA), form)


class UnpacksTooMuch(Bad):
    def unpack(self, p: PackedTensor, bits: Any = None, rows: slice = slice(None)) -> Array:
        return super().unpack(p)


class UnpacksFloat64(Bad):
    def unpack(self, p: PackedTensor, bits: Any = None, rows: slice = slice(None)) -> Array:
        return super().unpack(p, bits, rows).astype(np.float64)


class RaisesInUnpack(Bad):
    def unpack(self, p: PackedTensor, bits: Any = None, rows: slice = slice(None)) -> Array:
        raise IndexError("far out")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (UnpacksTooMuch, r"half: unpack returned float32 \(257, 32\); float32 \(1, 32\) is exp"),
        (UnpacksFloat64, "half: unpack returned float64"),
        (RaisesInUnpack, "half: unpack failed: IndexError: far out"),
    ],
)
def test_a_quantizer_that_unpacks_badly_is_named(folder: Path, build: Any, said: str) -> None:
    path = written(folder, tensors(LLAMA), "half")
    model = opened(path, Registry(extra={"half": plugin(build)}))
    with pytest.raises(SplitbitError, match=said):
        model.logits("abc")


def test_the_qualified_name_of_a_format_goes_to_the_file(folder: Path) -> None:
    form = packed_format(WITH_HALF, "local:half")
    assert form.plugin == "local"
    weights = pack(tensors(LLAMA), form)
    assert {v.format for v in weights.arrays.values() if isinstance(v, PackedTensor)} == {
        "local:half"
    }
    path = folder / "model-local-half.safetensors"
    safetensors.write(path, *packed.encode(weights, "a test"))
    assert opened(path).logits("abc").shape == (3, V)


def test_numpy_serves_what_a_compiled_backend_has_no_kernel_for(folder: Path) -> None:
    pytest.importorskip("numba")
    path = written(folder, tensors(LLAMA), "q8_0")
    compute = choose(OURS, "numba", "fp32", threads=1)
    decoder = opened(path, OURS).decoder
    table = compute.table(train=False)
    plan(decoder, table)
    origins = {
        site.site.op: site.origin
        for site in table.resolved
        if any(kind.startswith("packed:") for kind in site.site.operands)
    }
    assert origins == {
        "embedding": "numpy",
        "linear": "numpy",
        **dict.fromkeys(("attention_block", "mlp_block", "head_loss", "logits"), "parts"),
    }
