"""What the documentation shows is run, and what it names is there."""

import re
from pathlib import Path

import pytest

import splitbit_kit

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_python_page_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/python.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITBIT_CACHE", str(tmp_path / "cache"))
    lines = [f"Friends, Romans, lend me {n} ears; I come to bury Caesar.\n" for n in range(90)]
    Path("speeches.txt").write_text("".join(lines), "utf-8")
    names = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)  # one page, one session
    assert names["run"].statistics["total_steps"] == 20
    assert names["logits"].shape[1] == names["model"].tokenizer.vocab_size
    assert "resuming" in capsys.readouterr().out


def test_the_public_names_are_there():
    for name in splitbit_kit.__all__:
        assert getattr(splitbit_kit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        splitbit_kit.trane  # noqa: B018


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["docs/tour.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_exist(page):
    text = (ROOT / page).read_text("utf-8")
    for name in re.findall(r"`([\w/.]+\.(?:py|toml|md))`", text):
        homes = (ROOT, ROOT / "splitbit_kit", ROOT / "docs")
        assert any((home / name).exists() for home in homes), name
