"""Configuration: four sources in order, every key checked, every message with a fix."""

import re
import tomllib

import pytest
import tomli_w

from splitbit_kit.api import UsageError
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.presets import preset, preset_names
from splitbit_kit.models.tiers import pick
from splitbit_kit.training.config import Config, build_config, from_dict, on_tier, to_dict


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name):
    config = build_config(name)
    assert config.preset == name
    assert config.train.seq_len in (0, config.model.context) or name.startswith("bench")


def test_later_sources_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'preset = "nanogpt-laptop"\n[train]\nsteps = 10\nbatch_size = 3\nseed = 7\n', "utf-8"
    )
    config = build_config(
        None, file, ["train.batch_size=4", "train.seed=8"], {"train.seed": 9, "optimizer.lr": 0.5}
    )
    assert config.preset == "nanogpt-laptop"  # from the file
    assert config.model.width == 128  # from the preset
    assert config.train.steps == 10  # file over preset
    assert config.train.batch_size == 4  # --set over file
    assert config.train.seed == 9  # flag over --set
    assert config.optimizer.lr == 0.5
    assert build_config("tiny-llama", file).preset == "tiny-llama"  # a flag over the file


def test_a_tier_decides_only_what_nobody_else_does(tmp_path):
    bare = build_config(machine="full")
    assert (bare.tier, bare.preset) == ("full", pick("full").preset)
    assert build_config().tier == "light"
    assert build_config(machine="full", tier="mobile") == build_config(tier="mobile")
    other = build_config("bench-c1", tier="full")  # says neither steps nor learning rate
    assert (other.model.width, other.train.batch_size) == (128, 12)  # the preset's
    assert other.scheduler.options == {}  # a model's affair, not a tier's
    assert (other.train.steps, other.optimizer.lr) == (bare.train.steps, bare.optimizer.lr)
    file = tmp_path / "run.toml"
    file.write_text('tier = "minimal"\n[train]\nsteps = 7\n', "utf-8")
    from_file = build_config(file=file, machine="full")
    assert (from_file.preset, from_file.train.steps) == (pick("minimal").preset, 7)
    assert build_config(file=file, tier="mobile").preset == pick("mobile").preset
    file.write_text('tier = "minimal"\npreset = "nanogpt-laptop"\n', "utf-8")
    assert build_config(file=file).preset == "nanogpt-laptop"


def test_epochs_replace_the_steps_of_a_tier():
    train = build_config("bench-c1", tier="full", assignments=["train.epochs=2"]).train
    assert (train.steps, train.epochs) == (0, 2.0)


def test_batch_size_0_is_the_tiers():
    for tier in ("mobile", "maximum"):
        config = build_config("nanogpt-laptop", tier=tier, flags={"train.batch_size": 0})
        assert config.train.batch_size == build_config(tier=tier).train.batch_size
    assert on_tier(Config(tier="mobile"), "maximum") == on_tier(Config(), "mobile")
    assert on_tier(Config(), "maximum").train.batch_size == 16


def test_epochs_of_a_later_source_replace_the_steps_of_an_earlier():
    assert build_config("nanogpt-laptop").train.steps == 2000
    assert build_config("nanogpt-laptop", flags={"train.epochs": 2}).train.steps == 0
    both = build_config("nanogpt-laptop", flags={"train.epochs": 2, "train.steps": 5}).train
    assert (both.steps, both.epochs) == (5, 2)  # steps win where both are said


def test_round_trip_through_toml():
    config = build_config(None, None, ["optimizer.beta1=0.8", "scheduler.warmup_steps=3"])
    assert config.optimizer.options["beta1"] == 0.8
    assert from_dict(tomllib.loads(tomli_w.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.step=5", "train.step is not a key of train; did you mean steps?"),
        ("trian.steps=5", "section 'trian' is not known; did you mean train?"),
        ("train.steps", "section.key=value is expected"),
        ("steps=5", "section.key=value is expected"),
        ("train.steps=many", "train.steps: expected `int`, got `str`"),
        ("train.steps=-1", "train.steps: -1 is below 0"),
        ("train.steps=1.5", "train.steps: expected `int`, got `float`"),
        ("train.batch_size=-1", "train.batch_size: -1 is below 0"),
        ("train.epochs=inf", "train.epochs: inf is not a finite number"),
        ("train.grad_clip=nan", "train.grad_clip: nan is below 0"),
        ("train.non_finite=panic", "'panic' is not one of stop, skip"),
        ("tokenizer.kind=wordpiece", "'wordpiece' is not one of"),
        ("data.validation=1.5", "not a share between 0 and 1"),
        ("optimizer.lr=0", "optimizer.lr: 0.0 is not a number above 0"),
        ("compute.precision=fp16", "'fp16' is not one of auto, bf16, fp32, fp64"),
        ("model.family=bert", "'bert' is not one of gpt2, llama"),
        ("model.layers=0", "model.layers: 0 is not in 1 .. 1048576"),
        ("model.dropout=1", "model.dropout: 1.0 is not in 0 .. 1"),
        ("checkpoint.keep=1", "checkpoint.keep: 1 is below 2"),
    ],
)
def test_a_bad_key_or_value_is_named(assignment, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        build_config(None, None, [assignment])


def test_a_bad_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read"):
        build_config(None, tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[train\n", "utf-8")
    with pytest.raises(UsageError, match=r"bad\.toml: not valid TOML"):
        build_config(None, bad)
    bad.write_text("preset = 5\n", "utf-8")
    with pytest.raises(UsageError, match="preset: 5 is not a name"):
        build_config(None, bad)
    bad.write_text("tier = 5\n", "utf-8")
    with pytest.raises(UsageError, match="tier: 5 is not a name"):
        build_config(None, bad)
    bad.write_text("train = 5\n", "utf-8")
    with pytest.raises(UsageError, match="train: a section is expected"):
        build_config(None, bad)


def test_a_section_that_is_none_is_named():
    for read in (from_dict, lambda data: build_config(sections=data)):
        with pytest.raises(UsageError, match="train: a section is expected"):
            read({"train": 5})


def test_options_have_no_table_of_their_own():
    config = build_config(assignments=["optimizer.options=3"])
    assert config.optimizer.options["options"] == 3  # an option like any other, and so unknown


def test_options_of_a_preset_are_those_of_its_plugin():
    def options(*assignments, **flags):
        flags = {key.replace("__", "."): value for key, value in flags.items()}
        return build_config(assignments=assignments, flags=flags).scheduler.options

    given = preset("tiny-llama")
    of_cosine = {"warmup_steps": given["scheduler"]["warmup_steps"]}
    assert options() == options(scheduler__name="cosine") == of_cosine
    assert options(scheduler__name="flat") == {}
    assert options("scheduler.warmup_steps=5", scheduler__name="flat") == {"warmup_steps": 5}
    assert build_config(flags={"optimizer.name": "sgd"}).optimizer.lr == given["optimizer"]["lr"]


SCALES = {"adamw": 1.0, "lion": 0.1, "sgd": 10.0}


def rate(*names, **more):
    return build_config(*names, lr_scale=SCALES.__getitem__, **more).optimizer.lr


def test_a_presets_rate_becomes_that_of_the_optimizer_named(tmp_path):
    given = preset("tiny-llama")["optimizer"]["lr"]
    named = tmp_path / "named.toml"
    named.write_text('[optimizer]\nname = "lion"\n', "utf-8")
    assert rate() == rate(flags={"optimizer.name": "adamw"}) == given
    assert rate(flags={"optimizer.name": "lion"}) == 3e-4
    assert rate(assignments=["optimizer.name=lion"]) == 3e-4
    assert rate(file=named) == 3e-4
    assert rate(sections={"optimizer": {"name": "lion"}}) == 3e-4
    assert rate(file=named, flags={"optimizer.name": "sgd"}) == 3e-2
    # the tier's, where the preset has none
    other = build_config("bench-c1", tier="full").optimizer.lr
    assert rate("bench-c1", tier="full", flags={"optimizer.name": "lion"}) == pytest.approx(
        other / 10
    )


@pytest.mark.parametrize("name", preset_names())
def test_presets_have_the_rates_of_adamw(name):
    assert preset(name).get("optimizer", {}).get("name", "adamw") == "adamw"


def test_a_rate_that_was_given_is_taken_as_it_is(tmp_path):
    both = tmp_path / "both.toml"
    both.write_text('[optimizer]\nname = "lion"\nlr = 0.5\n', "utf-8")
    assert rate(file=both) == 0.5
    assert rate(file=both, flags={"optimizer.name": "sgd"}) == 0.5
    assert rate(assignments=["optimizer.lr=0.25"], flags={"optimizer.name": "lion"}) == 0.25
    assert rate(flags={"optimizer.name": "lion", "optimizer.lr": 0.25}) == 0.25


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(UsageError, match="did you mean nanogpt-laptop"):
        build_config("nanogpt-labtop")


class TestModelShape:
    def test_odd_head_size_with_rotary_is_refused_with_widths_that_work(self):
        with pytest.raises(UsageError, match=r"520 with 8 heads .* use width 512 or 528"):
            ModelConfig(family="llama", width=520, heads=8)

    def test_heads_that_do_not_divide_the_width_are_refused_with_heads_that_do(self):
        with pytest.raises(UsageError, match=r"1600 with 48 heads .* 1584 or 1632; or .*50"):
            ModelConfig(family="gpt2", width=1600, heads=48)

    @pytest.mark.parametrize("suggestion", [512, 528])
    def test_the_suggested_widths_do_work(self, suggestion):
        assert ModelConfig(family="llama", width=suggestion, heads=8).head_size % 2 == 0

    def test_kv_heads_must_divide_heads(self):
        with pytest.raises(UsageError, match="use one of 1, 2, 3, 6"):
            ModelConfig(family="llama", width=96, heads=6, kv_heads=4)

    def test_defaults_of_hidden(self):
        assert ModelConfig(family="gpt2", width=128).hidden == 512
        assert ModelConfig(family="llama", width=256).hidden == 768
        assert ModelConfig(family="llama", width=512).hidden == 1536

    def test_llama_has_no_biases(self):
        with pytest.raises(UsageError, match="no biases"):
            ModelConfig(family="llama", bias=True)


def test_a_key_in_a_table_of_options_can_be_set_alone(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[quantize]\nformat = "f"\noptions = {a = 1, b = 2}\n'
        '[track]\nnames = ["x", "y"]\n[track.options.x]\nlabel = "file"\nlines = 3\n',
        "utf-8",
    )

    def options(*assignments):
        config = build_config(file=file, assignments=assignments)
        return config.quantize.options, config.track.options

    held = {"a": 1, "b": 2}, {"x": {"label": "file", "lines": 3}}
    assert options() == held
    found = options(
        "quantize.options.b=5", "quantize.options.c=word", "track.options.x.label=mine",
        "track.options.y.n=1",
    )  # fmt: skip
    assert found == (
        {"a": 1, "b": 5, "c": "word"},
        {"x": {"label": "mine", "lines": 3}, "y": {"n": 1}},
    )
    assert options("quantize.options={c=7}", "quantize.options.d=8")[0] == {"c": 7, "d": 8}
    assert options("quantize.options.d=8", "quantize.options={c=7}")[0] == {"c": 7}
    assert options() == held


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("model.layers.deep=1", "--set model.layers.deep=1: section.key=value is expected"),
        ("quantize.options.=1", "section.key=value is expected"),
        ("quantize.options..a=1", "section.key=value is expected"),
        ("train.=1", "section.key=value is expected"),
        ("track.options.x=1", "track.options"),
    ],
)
def test_a_key_that_lies_in_no_table_is_refused(assignment, said):
    with pytest.raises(UsageError, match=said):
        build_config(assignments=['track.names=["x"]', assignment])


def test_a_key_in_what_is_no_table_is_refused():
    with pytest.raises(UsageError, match=r"quantize\.options\.a: options is 5, no table"):
        build_config(assignments=["quantize.options=5", "quantize.options.a=1"])
