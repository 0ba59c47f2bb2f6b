"""The report as Chromium shows it: sizes, themes, the script, and that it asks for nothing."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path

import pytest
from browser import Browser

from splitbit_kit.report.write import write
from splitbit_kit.training.config import build_config
from splitbit_kit.training.run import train

TEXT = "".join(f"{n} green bottles hanging on the wall, and {n % 7} more.\n" for n in range(80))
HOSTILE = "</pre><script>document.title='taken'</script><img src='http://192.0.2.1/x'>" + "w" * 300

SIZES = {"desktop": (1280, 900), "phone": (390, 844), "small phone": (320, 640)}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page about two runs, and in its folder `one.html` about one of them."""
    root = tmp_path_factory.mktemp("report")
    (root / "text.txt").write_text(TEXT, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPLITBIT_CACHE", str(root / "cache"))
        for name, lr in (("one", 1e-2), ("two", 1e-3)):
            config = build_config(
                "tiny-llama",
                sections={
                    "model": {"layers": 1, "heads": 2, "kv_heads": 1, "width": 32, "context": 32},
                    "tokenizer": {"kind": "byte"},
                    "train": {"steps": 40, "batch_size": 2, "seq_len": 16, "eval_every": 10},
                    "optimizer": {"lr": lr},
                    "scheduler": {"warmup_steps": 2},
                    "sample": {"max_tokens": 40, "prompt": HOSTILE},
                    "compute": {"backend": "numpy", "threads": 1},
                },
            )
            train(config, root / "text.txt", root / name)
    write([root / "one"], root / "one.html")
    return write([root / "one", root / "two"], root / "both.html").path


COUNT_COLOURS = """(async () => {
  const image = new Image();
  image.src = "data:image/png;base64,%s";
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const data = new Uint32Array(canvas.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of data) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  return [...counts];
})()"""


def colours(web: Browser, png: bytes) -> Counter[tuple[int, ...]]:
    """Return how often each colour stands in an image, read by the browser in an empty page."""
    web.call("Page.navigate", url="about:blank")
    found = web.evaluate(COUNT_COLOURS % base64.b64encode(png).decode())
    return Counter({tuple(pixel.to_bytes(4, "little")[:3]): count for pixel, count in found})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page", ["one.html", "both.html"])
def test_it_fits_any_screen_and_asks_for_nothing(
    web: Browser, report: Path, page: str, size: str
) -> None:
    width, height = SIZES[size]
    web.open(report.with_name(page), width=width, height=height)
    web.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    seen, inside = web.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert inside == width
    assert seen <= inside
    wide = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll')
        && e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 99))"""
    assert web.evaluate(wide) == []
    requests = [event["request"]["url"] for event in web.seen("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [
        report.with_name(page).as_uri()
    ]
    for trouble in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
        assert web.seen(trouble) == []
    assert web.evaluate("document.title").endswith("splitbit-kit")


@pytest.mark.parametrize(("dark", "paper"), [(False, (255, 255, 255)), (True, (20, 23, 29))])
def test_it_follows_the_theme_and_draws_the_curves(
    web: Browser, report: Path, tmp_path: Path, dark: bool, paper: tuple[int, ...]
) -> None:
    web.open(report.with_name("one.html"), width=900, height=700, dark=dark)
    styles = {
        "ink": "getComputedStyle(document.body).color",
        "training": "getComputedStyle(document.querySelector('path.line.c0')).stroke",
        "validation": "getComputedStyle(document.querySelector('path.dots.c1')).stroke",
    }
    wanted = {name: web.evaluate(style) for name, style in styles.items()}
    found = colours(web, web.screenshot(tmp_path / "page.png"))
    assert paper in {colour for colour, _ in found.most_common(2)}
    for name, style in wanted.items():
        colour = tuple(int(n) for n in style.strip("rgb()").split(","))
        assert found[colour] > 50, name


def test_text_keeps_its_size_on_a_phone(web: Browser, report: Path) -> None:
    web.open(report, width=320, height=640)
    heights = "[...document.querySelectorAll('.chart text')].map(t => t.getBBox().height)"
    assert min(web.evaluate(heights)) >= 11


def test_values_are_read_out_under_the_pointer_and_by_keys(web: Browser, report: Path) -> None:
    web.open(report.with_name("one.html"), width=900, height=1200)
    said = "document.querySelector('output').textContent"
    place = "document.querySelector('.chart').getBoundingClientRect().toJSON()"
    box = web.evaluate(place)
    web.point(box["left"] + box["width"] / 2, box["top"] + 30)
    words = web.evaluate(said)
    assert words.startswith("step 20  ·  each step ")
    assert "training smoothed" in words and "validation" in words
    web.point(1, 1)
    assert web.evaluate(said) == ""
    web.evaluate("document.querySelector('.chart').focus()")
    web.press("Home")
    assert web.evaluate(said).startswith("step 0 ")
    web.press("ArrowRight")
    assert web.evaluate(said).startswith("step 1 ")
    web.press("End")
    assert web.evaluate(said).startswith("step 40 ")
    web.press("Escape")
    assert web.evaluate(said) == ""


def test_it_is_whole_without_script(web: Browser, report: Path) -> None:
    web.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        web.open(report.with_name("one.html"), width=900, height=700)
        tree = web.call("Accessibility.getFullAXTree")["nodes"]
    finally:
        web.call("Emulation.setScriptExecutionDisabled", value=False)
    names = {(n["role"]["value"], n.get("name", {}).get("value")) for n in tree if "role" in n}
    for chart in ("Loss, nats per token", "Learning rate", "Gradient norm", "Tokens per second"):
        assert ("image", chart) in names or ("img", chart) in names, chart
    assert ("heading", "Samples over time") in names
    assert {"columnheader", "rowheader"} <= {role for role, _ in names}


def test_it_prints_with_all_that_is_folded(web: Browser, report: Path, tmp_path: Path) -> None:
    web.open(report, width=900, height=700)
    web.call("Emulation.setEmulatedMedia", media="print")
    try:
        shown = web.evaluate(
            "[...document.querySelectorAll('details table')].every(t => t.offsetHeight > 0)"
        )
    finally:
        web.call("Emulation.setEmulatedMedia", media="")
    assert shown
