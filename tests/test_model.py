"""Models from run folders: which one is meant, what it can do, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from splitbit_kit import model as model_module
from splitbit_kit.api import SplitbitError, UsageError
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.formats import checkpoint, safetensors
from splitbit_kit.formats.safetensors import Tensors
from splitbit_kit.model import Model, load
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import parameter_specs
from splitbit_kit.registry import Registry
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.training.config import Config
from splitbit_kit.training.run_folder import ModelHeader, RunFolder, model_tensors, read_header

Array = np.ndarray[Any, np.dtype[Any]]

CONTEXT = 16
LLAMA = ModelConfig("llama", layers=2, heads=4, kv_heads=2, width=16, hidden=24, context=CONTEXT)
GPT2 = ModelConfig("gpt2", layers=2, heads=2, width=16, context=CONTEXT, bias=True, tied=False)
TOKENIZER = Tokenizer.train("byte", [])
V = TOKENIZER.vocab_size
ASCII = np.arange(V) < 128

REGISTRY = Registry()


def opened(path: Path, **more: Any) -> Model:
    return load(path, **{"backend": "numpy", "registry": REGISTRY, **more})


def tensors(config: ModelConfig, seed: int = 1, dtype: Any = np.float32) -> Tensors:
    """Return what a run saves of a model with random weights; its step is the seed."""
    specs = parameter_specs(config, V)
    params = ParameterStore(specs, dtype)
    params.initialise(specs, seed)
    return model_tensors(params, ModelHeader(config, V, TOKENIZER.sha256, seed, 1.5, ASCII))


def save_checkpoint(run: RunFolder, step: int, config: ModelConfig = LLAMA) -> Path:
    return checkpoint.save(run.checkpoints, {"model": tensors(config, step)}, {"step": step})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run folder that has no model yet."""
    folder = RunFolder(tmp_path / "bard")
    folder.begin(Config(), TOKENIZER)
    return folder


def damage(run: RunFolder, metadata: dict[str, str | None] | None = None, **arrays: Any) -> None:
    """Save a best model with some tensors or metadata replaced, or left out where None."""
    good = tensors(LLAMA)
    every = {**good.arrays, **{name.replace("__", "."): a for name, a in arrays.items()}}
    texts = {**good.metadata, **(metadata or {})}
    changed = Tensors(
        {name: array for name, array in every.items() if array is not None},
        {name: text for name, text in texts.items() if text is not None},
    )
    checkpoint.replace_model(run.best, changed)


def refused(run: RunFolder, match: str) -> None:
    with pytest.raises(SplitbitError, match=match) as error:
        opened(run.path)
    assert "\n" not in str(error.value)


# ---- which model is meant


def test_a_run_folder_means_best_then_final_then_the_newest_valid_checkpoint(
    run: RunFolder,
) -> None:
    with pytest.raises(SplitbitError, match="no model yet"):
        opened(run.path)
    save_checkpoint(run, 2)
    newest = save_checkpoint(run, 3)
    assert opened(run.path).header.step == 3
    assert "checkpoint step-000003" in opened(run.path).label
    (newest / "model.safetensors").write_bytes(b"damaged")
    assert opened(run.path).header.step == 2
    assert "checkpoint step-000002" in opened(run.path).label
    checkpoint.replace_model(run.final, tensors(LLAMA, 5))
    assert (opened(run.path).header.step, "final" in opened(run.path).label) == (5, True)
    checkpoint.replace_model(run.best, tensors(LLAMA, 4))
    assert (opened(run.path).header.step, "best" in opened(run.path).label) == (4, True)


def test_a_model_inside_a_run_can_be_named(run: RunFolder) -> None:
    step = save_checkpoint(run, 2)
    checkpoint.replace_model(run.final, tensors(LLAMA, 5))
    checkpoint.replace_model(run.best, tensors(LLAMA, 4))
    for folder, number in ((step, 2), (run.final, 5), (run.best, 4)):
        model = opened(folder)
        assert model.header.step == number
        assert str(folder) in model.label


def test_what_is_no_model_is_refused(tmp_path: Path, run: RunFolder) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        opened(tmp_path / "nothing")
    with pytest.raises(SplitbitError, match="not a model"):
        opened(tmp_path)
    with pytest.raises(SplitbitError, match="not a model"):
        opened(run.checkpoints.parent.parent)


# ---- what it can do


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=lambda config: config.family)
def test_a_model_is_what_was_saved(run: RunFolder, config: ModelConfig) -> None:
    saved = tensors(config)
    checkpoint.replace_model(run.best, saved)
    model = opened(run.path)
    assert model.config == config
    assert model.tokenizer.sha256 == TOKENIZER.sha256
    assert model.parameters == sum(array.size for array in saved.arrays.values())
    assert np.array_equal(model.header.seen, ASCII)
    for name, array in saved.arrays.items():
        assert np.array_equal(model.decoder.params[name].array, array)


def test_weights_are_mapped_and_read_only(run: RunFolder) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    params = opened(run.path).decoder.params
    assert params.values.size == 0  # no copy beside the map
    for spec in parameter_specs(LLAMA, V):
        param = params[spec.name]
        assert not param.array.flags.owndata
        assert not param.array.flags.writeable
        assert not param.trainable


def test_a_model_outlives_the_replacement_of_its_file(run: RunFolder) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    model = opened(run.path)
    before = model.logits("abc").copy()
    checkpoint.replace_model(run.best, tensors(LLAMA, 9))
    shutil.rmtree(run.path)
    assert np.array_equal(model.logits("abc"), before)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_weights_of_another_dtype_are_converted(run: RunFolder, dtype: Any) -> None:
    arrays, metadata = tensors(LLAMA)
    changed = {name: array.astype(dtype) for name, array in arrays.items()}
    checkpoint.replace_model(run.best, Tensors(changed, metadata))
    model = opened(run.path)
    for name, array in changed.items():
        held = model.decoder.params[name].array
        assert held.dtype == np.float32
        assert np.array_equal(held, array.astype(np.float32))


def test_precision_fp64_computes_in_float64(run: RunFolder) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    exact, single = opened(run.path, precision="fp64").logits("abc"), opened(run.path).logits("abc")
    assert [exact.dtype.name, single.dtype.name] == ["float64", "float32"]
    np.testing.assert_allclose(single, exact, rtol=1e-4, atol=1e-6)


def test_logits_of_text_and_of_ids(run: RunFolder) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    model = opened(run.path)
    logits = model.logits("abc")
    assert logits.shape == (3, V)
    assert np.array_equal(model.logits([97, 98, 99]), logits)
    assert np.array_equal(model.logits(np.array([97, 98, 99], np.uint16)), logits)
    np.testing.assert_allclose(model.logits("ab"), logits[:2], rtol=1e-5, atol=1e-6)
    wrong: list[Any] = [[97, V], [-1], [0.5], [[97]], np.array(97)]
    for ids in wrong:
        with pytest.raises(UsageError, match="ids"):
            model.logits(ids)
    for text in ("", "x" * (CONTEXT + 1)):
        with pytest.raises(UsageError, match=f"{len(text)} tokens; 1 to {CONTEXT}"):
            model.logits(text)


def test_generate_and_stream(run: RunFolder) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    notices: list[str] = []
    model = opened(run.path, notify=notices.append)
    text = model.generate("abc", max_tokens=30, seed=1)
    assert len(text) == 30
    assert text.isascii()  # other ids were not seen
    assert "".join(model.stream("abc", max_tokens=30, seed=1)) == text
    assert model.generate(max_tokens=5, seed=1)
    with pytest.raises(UsageError, match="top_p"):
        model.stream("abc", top_p=2)
    assert not notices
    model.generate("x" * 2 * CONTEXT, max_tokens=1)
    assert len(notices) == 1


def test_evaluate_text_file_and_ids_alike(run: RunFolder, tmp_path: Path) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    model = opened(run.path)
    text = "All's well that ends well. " * 3
    found = model.evaluate(text)
    assert found == model.evaluate(TOKENIZER.encode(text))
    assert found.tokens == len(text) - 1
    assert found.loss == pytest.approx(np.log(V), abs=0.1)  # the weights are random
    assert found.perplexity == pytest.approx(np.exp(found.loss))
    assert found.bits_per_byte == pytest.approx(found.loss / np.log(2))
    file = tmp_path / "held-out.txt"
    file.write_text(text, "utf-8")
    assert model.evaluate(file).tokens == len(text)  # end-of-text comes last


def test_evaluate_says_that_a_text_is_too_long_to_measure_whole(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    monkeypatch.setattr(model_module, "EVALUATED_TOKENS", 20)
    notices: list[str] = []
    model = opened(run.path, notify=notices.append)
    assert model.evaluate("a" * 21).tokens == 20
    assert notices == []
    assert model.evaluate("a" * 22).tokens == 20
    assert notices == ["the first 20 of 22 tokens are measured"]


def test_evaluate_is_the_mean_over_side_by_side_windows(run: RunFolder) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    model = opened(run.path, precision="fp64")
    ids = TOKENIZER.encode("All's well that ends well.")
    nll = []
    for start in range(0, len(ids) - 1, 10):
        targets = ids[start + 1 : start + 11]
        logits = model.logits(ids[start : start + len(targets)])
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        nll += [-float(row[target]) for row, target in zip(logs, targets, strict=True)]
    assert model.evaluate(ids, seq_len=10).loss == pytest.approx(np.mean(nll), rel=1e-9)


def test_evaluation_needs_text_and_a_window_that_fits(run: RunFolder) -> None:
    checkpoint.replace_model(run.best, tensors(GPT2))
    model = opened(run.path)
    assert model.evaluate("ab").tokens == 1  # shorter than the context
    for text in ("", "a"):
        with pytest.raises(SplitbitError, match=f"{len(text)} tokens"):
            model.evaluate(text)
    with pytest.raises(SplitbitError, match="use --seq-len 2 or less"):
        model.evaluate("abc", seq_len=10)
    with pytest.raises(UsageError, match=f"context is {CONTEXT}"):
        model.evaluate("abc" * 20, seq_len=CONTEXT + 1)
    with pytest.raises(UsageError, match="seq_len 0"):
        model.evaluate("abc", seq_len=0)


# ---- what is refused


def test_the_tokenizer_of_another_run_is_refused(run: RunFolder) -> None:
    checkpoint.replace_model(run.best, tensors(LLAMA))
    Tokenizer.train("char", ["abc"]).save(run.tokenizer)
    refused(run, "tokenizer.json: not the tokenizer that .*best.*was trained with")


def test_a_missing_tensor_is_named(run: RunFolder) -> None:
    damage(run, layers__1__attn__k__weight=None)
    refused(run, "tensor layers.1.attn.k.weight is missing")


def test_a_wrong_shape_is_named_with_the_right_one(run: RunFolder) -> None:
    damage(run, layers__1__attn__k__weight=np.zeros((16, 16), np.float32))
    refused(run, r"layers.1.attn.k.weight has shape \(16, 16\), .* \(8, 16\)")


def test_whole_numbers_are_no_weights(run: RunFolder) -> None:
    damage(run, norm__weight=np.ones(16, np.int32))
    refused(run, "tensor norm.weight is int32; one of .*float32")


def test_a_tensor_too_many_is_named(run: RunFolder) -> None:
    damage(run, layers__0__attn__q__bias=np.ones(16, np.float32))
    refused(run, "layers.0.attn.q.bias' is not of the configured model")


def test_a_git_lfs_pointer_is_recognised(run: RunFolder) -> None:
    run.best.mkdir()
    (run.best / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )
    refused(run, "git-lfs pointer")


def test_a_file_cut_short_is_refused(run: RunFolder) -> None:
    path = checkpoint.replace_model(run.best, tensors(LLAMA))
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(run, "model.safetensors")


@pytest.mark.parametrize("key", sorted(tensors(LLAMA).metadata))
def test_a_missing_field_is_named(run: RunFolder, key: str) -> None:
    damage(run, metadata={key: None})
    refused(run, f"metadata {key} is missing")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "splitbit-kit model 2"),
        ("vocabulary", "258"),
        ("vocabulary", "many"),
        ("vocabulary", "-1"),
        ("model", "{"),
        ("model", "7"),
        ("model", '{"family": "rnn"}'),
        ("model", '{"layers": 1000000000}'),
        ("model", '{"colour": 1}'),
        ("unseen_ids", "5"),
        ("unseen_ids", "[[0]]"),
        ("unseen_ids", '[["a", "b"]]'),
        ("unseen_ids", "[[0.5, 2]]"),
        ("validation_loss", "low"),
        ("step", "last"),
    ],
)
def test_damaged_metadata_is_named(run: RunFolder, key: str, value: str) -> None:
    damage(run, metadata={key: value})
    refused(run, f"metadata {key}: ")


def test_the_tokenizer_fits_the_vocabulary(run: RunFolder) -> None:
    """A hash can be copied into the metadata of a model that has fewer ids."""
    few = tensors(LLAMA).arrays["tok.weight"][:200]
    damage(run, metadata={"vocabulary": "200", "unseen_ids": "[]"}, tok__weight=few)
    refused(run, "metadata vocabulary: 200, but the tokenizer has 257 ids")


def test_a_padded_vocabulary_is_no_hindrance(run: RunFolder) -> None:
    padded = np.concatenate([tensors(LLAMA).arrays["tok.weight"], np.ones((7, 16), np.float32)])
    damage(run, metadata={"vocabulary": str(V + 7), "unseen_ids": "[]"}, tok__weight=padded)
    model = opened(run.path)
    assert model.logits("abc").shape == (3, V + 7)
    model.generate("abc", max_tokens=50, temperature=9.0, seed=1)
    with pytest.raises(UsageError, match="ids"):
        model.logits([V])


def test_the_header_survives_the_file(run: RunFolder) -> None:
    path = checkpoint.replace_model(run.best, tensors(GPT2, 7))
    header = read_header(safetensors.read(path), str(path))
    expected = ModelHeader(GPT2, V, TOKENIZER.sha256, 7, 1.5, ASCII)
    assert replace(header, seen=expected.seen) == expected
    assert np.array_equal(header.seen, ASCII)
    assert json.loads(tensors(GPT2).metadata["unseen_ids"]) == [[128, V]]
