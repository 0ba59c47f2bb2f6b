"""The page as a whole: what is on it, and what it lets a browser do."""

import base64
import hashlib
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import begun, ended, evaluation, made, sample, step, whole

from splitbit_kit.report.page import page
from splitbit_kit.report.record import read
from splitbit_kit.report.write import write
from splitbit_kit.training.trainer import COPY_STATISTICS

VOID = {"br", "link", "meta"}


class Page(HTMLParser):
    """Reads a page; fails where tags do not match."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not set(self.open) & {"script", "style"}:
            self.words.append(data + " ")

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def shown(*folders):
    return page([read(folder) for folder in folders]).decode("utf-8")


def test_a_whole_run_is_told(tmp_path):
    found = Page(shown(made(tmp_path / "bard", whole())))
    for part in (
        "bard finished",
        "1,234,567 parameters",
        "Best validation loss 2.667 step 100",
        "Time 1:15",
        "Tokens per second 1,234",
        "Loss, nats per token",
        "Learning rate",
        "Gradient norm",
        "After step 25 Once text of step 25",
        "After step 100 Once text of step 100",
        "processor Abacus 9",
        "memory 7.5 GB",
        "numpy 2.1.3",
        "numba linear",
        "numpy dropout",
        "kv_heads 2",
        "warmup_steps",
    ):
        assert part in found.text, part
    assert len(found.all("figure")) == 4
    assert "History" not in found.text


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "still going on, or it was killed"),
        ([], "No values."),
        ([begun(), step(1)], "Steps 1 of 100"),
        ([begun(), ended(0, "interrupted")], "interrupted"),
        (
            [step(1), ended(1, "weights.bin: <disk> full")],
            "The run failed: weights.bin: <disk> full",
        ),
        ([step(1), step(2, loss="nan")], "The loss was not finite in 1 step (step 2)"),
        ([{**evaluation(0, 1.0), "loss": "nan"}], "The validation loss was not finite in 1 step"),
        ([step(1, loss="inf", lr="nan", grad_norm="-inf")], "The gradient norm was not finite"),
        ([step(1), {"kind": "train"}], "could not be read, and are left out: 1"),
        ([step(1)], "did not record the machine"),
        ([begun(machine="?", versions=[], origins=7)], "1,234,567 parameters"),
        (
            [begun(), step(1), ended(1), begun(1), step(2), ended(2)],
            "resumed 1 2026-12-01 10:00:00",
        ),
        ([evaluation(3, 2.0)], "Best validation loss 2 step 3"),
        ([ended(3, total_time_s="nan", tokens_per_second={}, epochs=None)], "finished"),
        ([ended(3, total_time_s=-1, tokens_per_second="nan", epochs="inf")], "Epochs inf"),
    ],
)
def test_whatever_became_of_the_run(tmp_path, rows, said):
    assert said in Page(shown(made(tmp_path / "run", rows))).text


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["nan", "inf", "-inf"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)
ROWS = {row["kind"]: dict(row) for row in whole(25)}
ROWS["end"] |= dict.fromkeys(COPY_STATISTICS)


@st.composite
def altered(draw):
    """Draw a line as a training writes it, but with some values of any type."""
    row = dict(ROWS[draw(st.sampled_from(sorted(ROWS)))])
    for key in draw(st.lists(st.sampled_from(sorted(row)), max_size=4)):
        row[key] = draw(json_values)
    return row


@settings(deadline=None, max_examples=150)
@given(st.lists(altered(), max_size=8))
def test_no_line_can_break_the_page(rows):
    with tempfile.TemporaryDirectory() as place:
        folder = made(Path(place) / "run", rows)
        assert "Curves" in Page(shown(folder)).text
        assert "2 runs" in Page(shown(folder, folder)).text


def test_quantised_copies_are_listed_with_what_they_lost(tmp_path):
    figures = ("q8_0", "runs/bard/best/model-q8_0.safetensors", 4_100_000, 2.5103)
    copy = dict(zip(COPY_STATISTICS, figures, strict=True))
    none = dict.fromkeys(COPY_STATISTICS)
    lost = {**copy, "quantizer": "ternary", "quantized_loss": "nan", "quantized_bytes": {}}
    for n, (rows, said) in enumerate(
        [
            (
                [*whole()[:-1], ended(100, **copy)],
                "q8_0 model-q8_0.safetensors 4.1 MB 2.510 +0.0103",
            ),
            ([ended(100, **copy), ended(100, **lost)], "ternary model-q8_0.safetensors none nan –"),
            ([ended(100, **copy), ended(110, **{**copy, "quantized_loss": 2.51})], "2.510 +0.0100"),
        ]
    ):
        found = Page(shown(made(tmp_path / str(n), rows)))
        assert "Quantised copies" in found.text
        assert said in found.text
    assert "Quantised" not in Page(shown(made(tmp_path / "none", [ended(1, **none)]))).text


def test_several_runs_share_their_charts_and_differ_in_words(tmp_path):
    one = made(tmp_path / "one", whole())
    two = made(tmp_path / "two", whole(50), batch_size=9)
    found = Page(shown(one, two))
    assert len(found.all("figure")) == 4
    for part in ("2 runs", "one, training", "two, validation", "train.batch_size 4 9"):
        assert part in found.text, part
    assert "train.seq_len" not in found.text


def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [made(tmp_path / which / "run", whole(25)) for which in ("a", "b")]
    found = Page(shown(*folders))
    assert f"{folders[0]}, training" in found.text


HOSTILE = "</pre></script><script>alert(1)</script><svg onload=alert(2)>\x1b[2J\u202ebad"


def test_nothing_from_a_file_becomes_markup(tmp_path):
    pair = {HOSTILE: HOSTILE}
    rows = [
        begun(),
        evaluation(1, 2.0, perplexity=HOSTILE),
        sample(1, HOSTILE * 3, HOSTILE),
        begun(1, time=HOSTILE, machine=pair, versions=pair, origins=pair),
        ended(1, HOSTILE),
    ]
    harmless = Page(shown(made(tmp_path / "plain", [begun(), sample(1, "x", "y")])))
    html = shown(made(tmp_path / "run", rows))
    found = Page(html)
    assert len(found.all("script")) == len(harmless.all("script")) == 1
    assert "onload" not in {name for _, attributes in found.tags for name in attributes}
    assert found.text.count("alert(1)") >= 13
    assert "\x1b" not in html and "\u202e" not in html
    assert "␛[2J⟨U+202E⟩bad" in html


def test_values_nested_deeper_than_python_goes(tmp_path):
    folder = made(tmp_path / "run", [begun(), sample(1, "x"), ended(1)])
    deep = "[" * 900 + "]" * 900
    lines = (folder / "metrics.jsonl").read_text("utf-8")
    for held in ('"Abacus 9"', '"numba"', '"x"', '"finished"', '"0.1.0"'):
        (folder / "metrics.jsonl").write_text(lines.replace(held, deep), "utf-8")
        assert "Curves" in Page(shown(folder)).text


def test_a_long_sample_is_cut(tmp_path):
    found = Page(shown(made(tmp_path / "run", [sample(1, "a" * 5000)])))
    assert "and 1,000 more characters" in found.text


def test_a_browser_may_run_our_script_and_load_nothing(tmp_path):
    html = shown(made(tmp_path / "run", whole()))
    found = Page(html)
    (policy,) = [m["content"] for m in found.all("meta") if "http-equiv" in m]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        ((content),) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert not re.search(r"https?://", html.replace("http://www.w3.org/2000/svg", ""))
    for _, attributes in found.tags:
        assert "style" not in attributes  # the policy would refuse it
        assert not {name for name in attributes if name.startswith("on")}


def luminance(colour):
    """Return the relative luminance of #rrggbb. See WCAG 2.2."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_is_enough_to_read(tmp_path, theme):
    html = shown(made(tmp_path / "run", []))
    block = re.findall(r":root \{(.*?)\}", html, re.DOTALL)[theme]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", block))
    for ground in ("paper", "panel"):
        for name in ("ink", "soft", "good", "bad", "wait", *(f"c{n}" for n in range(6))):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


def test_a_page_is_written_beside_the_run_and_renewed(tmp_path):
    folder = made(tmp_path / "run", [step(1)])
    first = write([folder])
    assert first.path == folder / "report.html"
    assert first.path.stat().st_size == first.size_bytes
    (folder / "metrics.jsonl").unlink()
    write([folder])
    assert "No values." in first.path.read_text("utf-8")
    assert {path.name for path in folder.iterdir()} == {"config.toml", "report.html"}
