"""The verbs that use a trained model: `generate` and `eval`."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commandline import TEXT, Run

from splitbit_kit import load
from splitbit_kit.cli import eval as eval_verb
from splitbit_kit.cli import generate as generate_verb

GENERATE_KEYS = {
    *("model", "prompt", "text", "seed", "time_s", "backend", "precision", "threads"),
}
EVAL_KEYS = {
    *("model", "text", "loss", "perplexity", "bits_per_byte", "tokens", "time_s"),
    *("backend", "precision", "threads"),
}
"""Keys that a release had. Add to them; never take one away."""

NUMPY = ("--backend", "numpy", "--threads", "1")


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_no_key_was_dropped() -> None:
    assert generate_verb.JSON_KEYS.keys() >= GENERATE_KEYS
    assert eval_verb.JSON_KEYS.keys() >= EVAL_KEYS


# ---- generate


def test_text_is_on_standard_output_and_the_model_on_standard_error(
    run: Run, trained: Path
) -> None:
    done = run("generate", trained, "--prompt", "The", "--max-tokens", "12", "--seed", "3", *NUMPY)
    assert done.code == 0
    assert done.err == f"model: best model of {trained}\n"
    model = load(trained, backend="numpy", threads=1)
    assert done.out == model.generate("The", max_tokens=12, seed=3) + "\n"


def test_json_has_all_keys_and_its_seed_gives_the_text_again(run: Run, trained: Path) -> None:
    first = run("generate", trained, "--max-tokens", "9", "--json", *NUMPY)
    assert list(first.last) == list(generate_verb.JSON_KEYS)
    assert len(first.out.splitlines()) == 1
    seed = first.last["seed"]
    again = run("generate", trained, "--max-tokens", "9", "--json", "--seed", seed, *NUMPY)
    assert again.last["text"] == first.last["text"]


def test_every_setting_reaches_the_sampling(run: Run, trained: Path) -> None:
    settings = {
        "max_tokens": 20,
        "temperature": 1.5,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "seed": 5,
        "when_full": "refuse",
    }
    flags = [str(x) for k, v in settings.items() for x in (f"--{k.replace('_', '-')}", v)]
    stops = ("--stop", "zq", "--stop", "\n")
    done = run("generate", trained, "--prompt", "a", *flags, *stops, *NUMPY, "--json")
    model = load(trained, backend="numpy", threads=1)
    assert done.last["text"] == model.generate("a", **settings, stop=("zq", "\n"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--temperature", "0"],
        ["--top-k", "2570"],
        ["--top-p", "0"],
        ["--top-p", "1"],
        ["--max-tokens", "0"],
        ["--max-tokens", "100"],
    ],
    ids=" ".join,
)
def test_settings_at_their_limits_work(run: Run, trained: Path, flags: list[str]) -> None:
    assert run("generate", trained, "--max-tokens", "5", *flags, *NUMPY).code == 0


@pytest.mark.parametrize(
    ("data", "prompt"),
    [(b"ROMEO:\n", "ROMEO:"), (b"a\r\n", "a"), (b"\xef\xbb\xbfa\n\n", "a\n"), (b"", "")],
)
def test_a_prompt_may_come_from_standard_input(
    run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, prompt: str
) -> None:
    give_stdin(monkeypatch, data)
    done = run("generate", trained, "--prompt", "-", "--max-tokens", "2", "--json", *NUMPY)
    assert done.last["prompt"] == prompt


def test_a_terminal_gets_no_control_characters(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    generate_verb.write_pieces(iter(["a\x1b", "[2J\n"]))
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("model", ["best", "final", "checkpoints/step-000004"])
def test_a_model_in_a_run_can_be_named(run: Run, trained: Path, model: str) -> None:
    done = run("generate", trained / model, "--max-tokens", "2", *NUMPY)
    assert (done.code, done.err) == (0, f"model: model {trained / model}\n")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["none"], 2, "none: no such file or folder"),
        ([], 2, "RUN"),
        (["RUN", "--temperature", "-1"], 2, "temperature"),
        (["RUN", "--temperature", "nan"], 2, "temperature"),
        (["RUN", "--top-p", "1.5"], 2, "top_p"),
        (["RUN", "--top-k", "-2"], 2, "top_k"),
        (["RUN", "--max-tokens", "-1"], 2, "max_tokens"),
        (["RUN", "--stop", ""], 2, "stop"),
        (["RUN", "--when-full", "explode"], 2, "slide"),
        (["RUN", "--seed", "-1"], 2, "seed"),
        (["RUN", "--backend", "numpi"], 2, "did you mean numpy?"),
        (["RUN", "--threads", "-1"], 2, "threads: -1 is below 0"),
        (["RUN", "--precision", "fp31"], 2, "'fp31' is not one of"),
        (["RUN", "--prompt", "a" * 30, "--when-full", "refuse", "--max-tokens", "3"], 2, "32"),
        (["RUN", "--prompt", "\udce9"], 2, "--prompt"),
        (["empty"], 1, "empty"),
    ],
    ids=lambda value: ascii(" ".join(value)[:40]) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(
    run: Run, place: Path, trained: Path, argv: list[str], code: int, said: str
) -> None:
    (place / "empty").mkdir()
    failed = run("generate", *[str(trained) if a == "RUN" else a for a in argv])
    assert (failed.code, failed.out.strip()) == (code, ""), failed
    assert said in failed.error


def test_a_prompt_that_is_not_utf_8_names_the_byte(
    run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"it\x92s ok")
    failed = run("generate", trained, "--prompt", "-", *NUMPY)
    assert failed.code == 2
    assert "byte 2 " in failed.error


def test_another_runs_tokenizer_is_refused(run: Run, place: Path, trained: Path) -> None:
    copy = shutil.copytree(trained, place / "copy")
    assert run("train", "text.txt", "--set", "tokenizer.kind=char", *SMALL, "--out", "o").code == 0
    shutil.copyfile("o/tokenizer.json", copy / "tokenizer.json")
    failed = run("generate", copy, *NUMPY)
    assert failed.code == 1
    assert "tokenizer" in failed.error


SMALL = [
    *("--set", "model.layers=1", "--set", "model.width=16", "--set", "model.context=16"),
    *("--seq-len", "16", "--batch-size", "1", "--steps", "1", "--backend", "numpy"),
]


# ---- eval


def test_eval_says_how_well_and_of_which_model(run: Run, trained: Path) -> None:
    done = run("eval", trained, "text.txt", *NUMPY)
    assert (done.code, done.err) == (0, f"model: best model of {trained}\n")
    for word in ("loss ", "perplexity ", "bits per byte ", "tokens "):
        assert word in done.out


def test_eval_json_has_all_keys(run: Run, trained: Path) -> None:
    done = run("eval", trained, "text.txt", "--json", *NUMPY)
    assert len(done.out.splitlines()) == 1
    assert list(done.last) == list(eval_verb.JSON_KEYS)
    found = load(trained, backend="numpy", threads=1).evaluate(Path("text.txt"))
    assert done.last["loss"] == found.loss
    assert done.last["tokens"] == found.tokens
    assert 0 < done.last["tokens"] <= len(TEXT.encode())


def test_eval_says_what_it_left_out(run: Run, place: Path, trained: Path) -> None:
    folder = place / "texts"
    folder.mkdir()
    (folder / "ok.txt").write_bytes(b"so it is")
    (folder / "b.txt").write_bytes(b"\x89PNG")
    done = run("eval", trained, "texts", *NUMPY)
    assert done.code == 0
    assert "b.txt: skipped (byte 0 is not valid utf-8; " in done.err


def test_eval_reads_the_encoding_that_it_is_told(run: Run, place: Path, trained: Path) -> None:
    (place / "cp1252.txt").write_bytes(b"it\x92s ok")
    done = run("eval", trained, "cp1252.txt", "--encoding", "cp1252", "--json", *NUMPY)
    # every byte but the first, and the end of the text
    assert done.last["tokens"] == len("it’s ok".encode())


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["RUN"], 2, "TEXT"),
        (["RUN", "none.txt"], 2, "none.txt"),
        (["RUN", "empty.txt"], 1, "0 tokens"),
        (["RUN", "cp1252.txt"], 1, "byte 2 is not valid utf-8"),
        (["none", "text.txt"], 2, "none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_eval_bad_input_is_one_line(
    run: Run, place: Path, trained: Path, argv: list[str], code: int, said: str
) -> None:
    (place / "empty.txt").write_bytes(b"")
    (place / "cp1252.txt").write_bytes(b"it\x92s ok")
    failed = run("eval", *[str(trained) if a == "RUN" else a for a in argv])
    assert failed.code == code, failed
    assert said in failed.error
