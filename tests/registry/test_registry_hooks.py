"""Each hook: called as its page in docs/plugins says. No hook without a page and a test."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from splitbit_kit.api import (
    OPS,
    TIERS,
    CheckpointSaved,
    EvalDone,
    Hardware,
    RunEnded,
    RunStarted,
    SampleWritten,
    Site,
    StepDone,
    hookspecs,
)
from splitbit_kit.registry import EVENT_HOOKS, HOOKS, KINDS, OFFER_TYPES, STATUSES

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "plugins"

STEP = StepDone(step=1, loss=2.0, lr=1e-3, grad_norm=101.0, tokens=8, seconds=0.1)
EVENTS = {
    "run_started": RunStarted(
        Path("runs/a"), {}, parameters=1234, tokens=99, origins={}, step=0, steps=9
    ),
    "step_done": STEP,
    "eval_done": EvalDone(
        3, 1.0, perplexity=2.7, bits_per_byte=1.5, tokens=9, seconds=1.0, best=True
    ),
    "sample_written": SampleWritten(4, prompt="To ", text="be"),
    "checkpoint_saved": CheckpointSaved(5, Path("runs/a/step-000005"), best=True),
    "run_ended": RunEnded(9, "finished", {}),
}
SAID = {
    "run_started": "1,234 parameters, steps 0 to 9",
    "step_done": "step 1: gradient norm 101",
    "eval_done": "step 3: 1.500 bits a byte",
    "sample_written": "step 4: To be",
    "checkpoint_saved": "saved runs/a/step-000005",
    "run_ended": "finished after 0 s",
}


def page(hook: str) -> Path:
    return PAGES / ("events.md" if hook in EVENT_HOOKS.values() else f"{hook}.md")


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S)


def example(hook: str) -> str:
    """Return the plugin on a hook's page."""
    return blocks(page(hook))[-1]


def written_signatures() -> dict[str, str]:
    """Return the signature of each hook, as hookspecs.py has it."""
    tree = ast.parse(Path(hookspecs.__file__).read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in HOOKS:
            returns = ast.unparse(node.returns) if node.returns else ""
            found[node.name] = f"def {node.name}({ast.unparse(node.args)}) -> {returns}"
    return found


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test(hook: str) -> None:
    assert callable(globals().get(f"test_hook_{hook}")), f"write test_hook_{hook} in {__file__}"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_page_with_its_signature(hook: str) -> None:
    assert page(hook).exists(), f"write {page(hook)}: signature, when it is called, an example"
    assert written_signatures()[hook] in blocks(page(hook))[0].splitlines()
    assert re.search(r"\bcalled\b", page(hook).read_text(encoding="utf-8"), re.I)
    assert f"def {hook}(" in example(hook)
    assert page(hook).name in (PAGES / "README.md").read_text(encoding="utf-8")


def test_every_page_is_about_a_hook() -> None:
    pages = {page(hook) for hook in HOOKS} | {PAGES / "README.md"}
    assert set(PAGES.glob("*.md")) == pages


def test_every_status_is_explained() -> None:
    text = (PAGES / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| status \| meaning \|\n\|.*\n((?:\|.*\n)+)", text, re.M)
    assert tuple(row.split("|")[1].strip() for row in table.splitlines()) == STATUSES


def test_every_kind_and_event_is_known() -> None:
    assert (
        *("backend", "optimizer", "scheduler", "quantizer", "tracker", "probe", "command"),
    ) == KINDS
    assert set(EVENT_HOOKS.values()) == set(EVENTS)
    assert set(HOOKS) == {*OFFER_TYPES, *EVENTS, "probe_hardware"}


def build(site: Any, hook: str, *args: Any, **options: Any) -> Any:
    """Install the plugin of a hook's page, and build the one thing that it offers."""
    site.install("documented", example(hook))
    registry = site.registry()
    kind = hook.removesuffix("s")
    (name,) = registry.names(kind)
    return registry.build(kind, name, *args, **options)


def test_hook_backends(site: Any) -> None:
    backend = build(site, "backends", None, "auto", 1)
    assert set(backend.ops) <= set(OPS)
    assert backend.precision == "fp32"
    offer = backend.ops["add"]
    assert offer.declines(Site("add", (), ("array:float32", "array:float32"), True), "add") is None
    assert offer.declines(Site("add", (), ("lowrank", "array:float32"), True), "add")
    ctx = SimpleNamespace(workspace=SimpleNamespace(take=np.empty))
    x = np.ones((2, 3), np.float32)
    out, saved = offer.op.forward(ctx, x, x)
    assert (out == 2).all()
    assert len(offer.op.backward(ctx, out, saved, None)) == 2


def test_hook_optimizers(site: Any) -> None:
    optimizer = build(site, "optimizers", weight_decay=0.5)
    params = SimpleNamespace(values=np.array([1.0, -1.0, 1.0]), decayed=1)
    state = optimizer.init(params)
    optimizer.update(params, np.array([3, -4, 0.0]), state, lr=0.1, grad_scale=1.0, ops={})
    np.testing.assert_allclose(params.values, [0.95 - 0.1, -0.9, 1.0])


def test_hook_schedulers(site: Any) -> None:
    schedule = build(site, "schedulers", 1.0, 10, power=2.0)
    assert [schedule(0), schedule(5), schedule(10)] == [1.0, 0.25, 0.0]


def test_hook_quantizers(site: Any) -> None:
    quantizer = build(site, "quantizers")
    w = np.array([[1.0, 1 / 3]], np.float32)
    packed = quantizer.pack(w)
    assert packed.nbytes == 4
    found = {name: (array.dtype, array.shape) for name, array in packed.arrays.items()}
    assert found == quantizer.layout(w.shape)
    np.testing.assert_array_equal(quantizer.unpack(packed), quantizer.round(w))


def test_hook_trackers(site: Any, tmp_path: Path) -> None:
    tracker = build(site, "trackers", tmp_path, digits=1)
    for event in EVENTS.values():
        tracker.event(event)
    tracker.close()
    assert (tmp_path / "losses.txt").read_text(encoding="utf-8") == "1 2.0\n"


def test_hook_probe_hardware(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    site.install("documented", example("probe_hardware"))
    assert site.registry().names("probe") == ["documented"]
    assert "no probe answered" in site.registry().probe().sources["tier"]
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    registry = site.registry()
    assert (registry.probe().cores, registry.probe().memory_bytes) == (6, 100 * 2**20)


def emitted(site: Any, capsys: Any, hook: str) -> str:
    site.install("documented", example(hook))
    registry = site.registry()
    registry.event(EVENTS[hook])
    return str(capsys.readouterr().out)


def test_hook_run_started(site: Any, capsys: Any) -> None:
    assert emitted(site, capsys, "run_started") == SAID["run_started"] + "\n"


def test_hook_step_done(site: Any, capsys: Any) -> None:
    assert emitted(site, capsys, "step_done") == SAID["step_done"] + "\n"


def test_hook_eval_done(site: Any, capsys: Any) -> None:
    assert emitted(site, capsys, "eval_done") == SAID["eval_done"] + "\n"


def test_hook_sample_written(site: Any, capsys: Any) -> None:
    assert emitted(site, capsys, "sample_written") == SAID["sample_written"] + "\n"


def test_hook_checkpoint_saved(site: Any, capsys: Any) -> None:
    assert emitted(site, capsys, "checkpoint_saved") == SAID["checkpoint_saved"] + "\n"


def test_hook_run_ended(site: Any, capsys: Any) -> None:
    site.install("documented", example("run_ended"))
    registry = site.registry()
    registry.event(EVENTS["run_started"])
    registry.event(EVENTS["run_ended"])
    assert capsys.readouterr().out.splitlines() == [SAID["run_started"], SAID["run_ended"]]


def test_the_whole_plugin_of_the_first_page_works(site: Any) -> None:
    (code,) = blocks(PAGES / "README.md")
    (project,) = re.findall(
        r"```toml\n(.*?)```", (PAGES / "README.md").read_text(encoding="utf-8"), re.S
    )
    assert 'step_lr = "splitbit_step_lr"' in project
    site.install("splitbit-step-lr", code, name="step_lr")
    schedule = site.registry().build("scheduler", "halving", 1.0, 1000, every=200)
    assert [schedule(199), schedule(200), schedule(400)] == [1.0, 0.5, 0.25]


# ---- hooks that misbehave

RECORDER = """
from splitbit_kit.api import hookimpl
seen = []
@hookimpl
def step_done(event): seen.append(event)
"""


@pytest.mark.parametrize("fault", ["1 / 0", "raise SystemExit(1)", "raise GeneratorExit"])
def test_an_event_hook_that_raises_is_reported_once(site: Any, fault: str) -> None:
    site.install("aa-recorder", RECORDER)
    site.install("bad", bad_hook(fault))
    site.install("zz-recorder", RECORDER)
    lines: list[str] = []
    registry = site.registry(notify=lines.append)
    registry.event(STEP)
    registry.event(STEP)
    assert sys.modules["aa_recorder"].seen == sys.modules["zz_recorder"].seen == [STEP, STEP]
    (line,) = lines
    assert line.startswith("plugin bad of bad, hook step_done: ")


def bad_hook(fault: str) -> str:
    return (
        "from splitbit_kit.api import hookimpl\n"
        f"@hookimpl\ndef step_done(event):\n    {fault}\n"
        f"@hookimpl\ndef probe_hardware():\n    {fault}\n"
    )


def test_the_users_interrupt_goes_through_an_event_hook(site: Any) -> None:
    site.install("bad", bad_hook("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        site.registry().event(STEP)


def test_a_hook_takes_only_the_arguments_that_it_names(site: Any, capsys: Any) -> None:
    site.install(
        "modest",
        "from splitbit_kit.api import hookimpl\n@hookimpl\ndef step_done(): print('a step')\n",
    )
    site.registry().event(STEP)
    assert capsys.readouterr().out == "a step\n"


PROBE = """
from splitbit_kit.api import Hardware, hookimpl
@hookimpl{how}
def probe_hardware(): return {answer}
"""
GOOD = "Hardware(2, 2, 10**9, 'light')"


@pytest.mark.parametrize(
    "answer",
    ["1 / 0", "'light'", "exit()", "Hardware(2, 2, 10**9, 'lite')", "Hardware(0, 1, 1, 'full')"],
)
def test_a_probe_that_fails_is_reported_and_passed_over(site: Any, answer: str) -> None:
    site.install("good", PROBE.format(how="", answer=GOOD))
    site.install("bad", PROBE.format(how="(tryfirst=True)", answer=answer))
    lines: list[str] = []
    registry = site.registry(notify=lines.append)
    assert registry.probe() == registry.probe() == Hardware(2, 2, 10**9, "light")
    (line,) = lines
    assert line.startswith("plugin bad of bad, hook probe_hardware: ")


def test_a_strangers_probe_is_asked_before_ours(site: Any) -> None:
    site.install_ourselves()
    assert site.registry().probe().sources["threads"] != "a stranger"
    answer = "Hardware(2, 2, 10**9, 'light', {'threads': 'a stranger'})"
    site.install("a-stranger", PROBE.format(how="", answer=answer))
    assert site.registry().probe().sources["threads"] == "a stranger"
    assert site.registry("a-stranger").probe().sources["threads"] != "a stranger"


def test_the_machine_is_asked_about_once(site: Any, capsys: Any) -> None:
    site.install("good", PROBE.format(how="", answer=f"print('asked') or {GOOD}"))
    registry = site.registry()
    assert registry.probe() is registry.probe()
    assert capsys.readouterr().out == "asked\n"


def test_without_a_probe_the_affinity_mask_counts(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    found = site.registry().probe()
    assert (found.threads, found.cores, found.tier) == (3, 3, TIERS[0])
    assert set(found.sources) == {"threads", "cores", "memory_bytes", "tier"}


def test_without_a_probe_or_a_way_to_ask_1_gb_is_assumed(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.sysconf", raising=False)  # as on Windows
    found = site.registry().probe()
    assert (found.memory_bytes, found.sources["memory_bytes"]) == (10**9, "no probe answered: 1 GB")
