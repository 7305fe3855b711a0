"""Configurations as files: what was given is what is written, and what is read is equal, option by option."""

import contextlib
import dataclasses
import io
import json
import math
import pickle
import typing
from enum import Enum

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.debug_utils import DebugOption
from transformers.trainer_utils import SaveStrategy
from trl import DPOConfig, GRPOConfig, ModelConfig, RewardConfig, RLOOConfig, SFTConfig

from trl_ext import PPOConfig, ReinforceLOOConfig, UserError
from trl_ext.checkpoints.imports import danger
from trl_ext.checkpoints.pickled import Name
from trl_ext.configuration import RLScriptArguments, from_json, from_yaml, parse, to_json, to_yaml
from trl_ext.configuration.header import HEADER
from trl_ext.configuration.options import check_options, options_given
from trl_ext.configuration.plain import same
from trl_ext.configuration.values import fit
from trl_ext.strict_yaml import dump_yaml, read_yaml

CPU = {"use_cpu": True, "bf16": False, "output_dir": "runs/x"}
OURS, THEIRS = (ReinforceLOOConfig, PPOConfig), (GRPOConfig, RLOOConfig, SFTConfig, RewardConfig, DPOConfig)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["no", "yes", "null", "~", "1e-5", "-.5e3", "0x1f", "1_000", "12:30", "2026-01-01", "=", "<<", "a: b", "# x", "",
     " x", "x\n\ny ", "\x85", "\u2028", "é", "日本", "\U0001f600", "{a", "[", "'", '"', "\\n", "true", "0o7",
     "1.", ".inf", "-"]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
MAPPING = st.dictionaries(TEXT, VALUES, max_size=4)
PROBABILITY = st.floats(0, 1, allow_nan=False)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": st.floats(1e-12, 1) | st.sampled_from([1e-5, 1e-8, 3e-4]),
        "weight_decay": PROBABILITY,
        "max_grad_norm": st.floats(0, allow_nan=False),
        "run_name": st.none() | TEXT,
        "lr_scheduler_kwargs": st.none() | MAPPING,
        "model_init_kwargs": st.none() | MAPPING,
        "generation_kwargs": st.none() | MAPPING,
        "lr_scheduler_type": st.sampled_from(["linear", "cosine", "constant"]),
        "save_strategy": st.sampled_from(["no", "steps", "epoch", SaveStrategy.NO]),
        "report_to": st.sampled_from(["none", ["tensorboard"], "tensorboard"]),
        "label_names": st.none() | st.lists(TEXT, max_size=3),
        "reward_weights": st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "seed": st.integers(0, 2**32 - 1),
        "logging_first_step": st.booleans(),
        "num_train_epochs": st.floats(0.1, 100) | st.integers(1, 9),
        "temperature": st.floats(0.1, 2),
        "remove_unused_columns": st.booleans(),
        "shuffle_dataset": st.booleans() | st.none(),
        "accelerator_config": st.none() | st.just({"split_batches": True}),
    },
)


def equal(one, other):
    return one == other or (
        isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    )


def assert_equal(one, other):
    assert type(one) is type(other)
    for field in dataclasses.fields(one):
        assert equal(getattr(one, field.name), getattr(other, field.name)), field.name


@pytest.mark.parametrize("kind", [ReinforceLOOConfig, PPOConfig, GRPOConfig])
@settings(max_examples=25)
@given(options=OPTIONS)
def test_what_is_read_equals_what_was_written(kind, options, tmp_path_factory):
    config = kind(**{**CPU, **options})
    folder = tmp_path_factory.mktemp("saved")
    to_yaml(config, folder / "run.yaml")
    assert_equal(from_yaml(kind, folder / "run.yaml"), config)
    if all("inf" not in repr(value) for value in options.values()):
        to_json(config, folder / "run.json")
        json.loads((folder / "run.json").read_text(), parse_constant=pytest.fail)
        assert_equal(from_json(kind, folder / "run.json"), config)


@settings(max_examples=150)
@given(value=VALUES)
def test_yaml_says_what_it_was_given(value, tmp_path_factory):
    path = tmp_path_factory.mktemp("yaml") / "file.yaml"
    path.write_text(dump_yaml({"value": value}), encoding="utf-8")
    again = read_yaml(path)["value"]
    assert again == value and repr(again) == repr(value)


def changed(value, hint):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        literal = [each for each in typing.get_args(hint) if isinstance(each, str) and each != value]
        return literal[0] if literal else value + "é: no"
    if hint == str | list[DebugOption]:
        return "underflow_overflow"
    if isinstance(value, list):
        return [*value, 0.5] if value and isinstance(value[0], float) else [*value, "a"]
    if isinstance(value, dict):
        return {**value, "a": [None, 1e-5]}
    for plausible in (7, 0.25, "no", [0.5], ["a"], {"a": 1}):  # of an option that is None
        with contextlib.suppress(ValueError):
            fitted = fit(plausible, hint)
            if type(fitted) is type(plausible) and repr(fitted) == repr(plausible):
                return plausible
    return None


@pytest.mark.parametrize("kind", OURS)
def test_every_option_that_is_set_after_construction_is_written_and_no_other(kind):
    config, hints = kind(**CPU), typing.get_type_hints(kind)
    before = options_given(config)
    assert before.keys() <= {*CPU}
    tried, refused, with_more = 0, set(), set()
    for field in dataclasses.fields(kind):
        value = getattr(config, field.name)
        other = changed(value, hints[field.name]) if field.init and "token" not in field.name else None
        if other is None or type(value).__name__ == "AcceleratorConfig":
            continue
        setattr(config, field.name, other)
        try:
            written = yaml.safe_load(to_yaml(config).replace("1e-05", "1.0e-05"))
        except UserError as error:
            assert "cannot be made again" in str(error)
            refused.add(field.name)
            setattr(config, field.name, value)
            continue
        if written.keys() - before.keys() - {field.name, *HEADER}:  # what else is needed to make an equal object
            with_more.add(field.name)
        read = check_options(kind, {field.name: options_given(config).get(field.name, field.default)}, "")
        assert equal(read[field.name], other), field.name
        setattr(config, field.name, value)
        tried += 1
    assert tried > 150
    assert options_given(config) == before
    assert "learning_rate" not in refused | with_more
    assert len(refused) < 60 and len(with_more) < 10, (refused, with_more)


def test_an_object_whose_computed_options_are_stale_is_not_written_as_another():
    args = ReinforceLOOConfig(**CPU)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = 32, 3
    with pytest.raises(UserError, match="cannot be made again"):
        to_yaml(args)
    ppo = PPOConfig(**CPU)
    ppo.kl_coef = 0.9
    with pytest.raises(UserError, match="cannot be made again"):
        to_yaml(ppo)


def test_a_value_that_would_be_read_as_another_is_refused():
    with pytest.raises(UserError, match="seed='5' would be read as 5"):
        to_yaml(ReinforceLOOConfig(**CPU, seed="5"))


def test_a_whole_number_for_a_real_one_is_written_as_real(tmp_path):
    config = ReinforceLOOConfig(**CPU, learning_rate=1)
    to_yaml(config, tmp_path / "a.yaml")
    to_yaml(from_yaml(ReinforceLOOConfig, tmp_path / "a.yaml"), tmp_path / "a.yaml")  # says the same


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ReinforceLOOConfig, {"num_generations": 1, "baseline": "ema"}),
        (ReinforceLOOConfig, {"steps_per_generation": 2}),
        (ReinforceLOOConfig, {"generation_batch_size": 16}),
        (PPOConfig, {"kl_coef": 0.2, "cliprange": 0.1, "total_episodes": 64}),
        (PPOConfig, {"num_mini_batches": 2}),
    ],
)
def test_what_was_given_is_written_and_not_what_was_made_of_it(kind, options):
    assert options_given(kind(**CPU, **options)) == CPU | options


@pytest.mark.parametrize("kind", THEIRS)
def test_configurations_of_trl_are_written_too(kind, tmp_path):
    config = kind(**CPU, learning_rate=1e-5, save_strategy="no", per_device_train_batch_size=4, eval_strategy="steps",
                  gradient_accumulation_steps=2)  # fmt: skip
    to_yaml(config, tmp_path / "run.yaml")
    to_json(config, tmp_path / "run.json")
    assert_equal(from_yaml(kind, tmp_path / "run.yaml"), config)
    assert_equal(from_json(kind, tmp_path / "run.json"), config)
    written = read_yaml(tmp_path / "run.yaml")
    assert "generation_batch_size" not in written and "steps_per_generation" not in written
    assert len(written) < 20


def test_dataclasses_of_any_kind_are_written(tmp_path):
    script, model = RLScriptArguments(reward_funcs=[{"name": "length"}], patience=3), ModelConfig(lora_r=4)
    for number, config in enumerate((script, model)):
        to_yaml(config, tmp_path / f"{number}.yaml")
        assert_equal(from_yaml(type(config), tmp_path / f"{number}.yaml"), config)


def test_what_the_trainer_computes_is_not_taken_for_given():
    config = PPOConfig(**CPU, num_ppo_epochs=3, logging_steps=5, total_episodes=640)
    config.run_name = "mine"
    counted = config.in_optimizer_steps(100)
    assert counted.logging_steps == 15
    assert counted.to_yaml() == config.to_yaml()
    counted.seed = 5
    assert options_given(counted) == options_given(config) | {"seed": 5}


def test_a_class_of_the_user_records_what_was_given_to_it():
    @dataclasses.dataclass
    class Mine(ReinforceLOOConfig):
        def __post_init__(self):
            self.beta *= 2
            super().__post_init__()

    config = Mine(**CPU, beta=0.1)
    assert config.beta == 0.2
    assert options_given(config) == CPU | {"beta": 0.1}


def test_the_file_is_a_recipes_configuration(tmp_path):
    config = ReinforceLOOConfig(**CPU, learning_rate=1e-5, save_strategy="no")
    config.reward_weights = [1.0, 0.5]
    config.to_yaml(tmp_path / "run.yaml")
    _, parsed, _ = parse((RLScriptArguments, ReinforceLOOConfig, ModelConfig), ["--config", str(tmp_path / "run.yaml")])
    assert_equal(parsed, config)
    with pytest.raises(UserError, match="was written by ReinforceLOOConfig, and this is SFTConfig with ModelConfig"):
        parse((SFTConfig, ModelConfig), ["--config", str(tmp_path / "run.yaml")])


def test_overrides_win_and_are_what_was_given(tmp_path):
    ReinforceLOOConfig(**CPU, beta=0.2).to_json(tmp_path / "run.json")
    config = ReinforceLOOConfig.from_json(tmp_path / "run.json", beta=0.3, seed=1)
    assert options_given(config) == CPU | {"beta": 0.3, "seed": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bta: 1", "run.yaml: unknown option 'bta'; did you mean beta?"),
        ("model_name_or_path: x", "unknown option 'model_name_or_path'; it is none of ReinforceLOOConfig"),
        ("beta: high", "run.yaml: beta expects a number, got 'high'"),
        ("config_class: PPOConfig", "was written by PPOConfig, and this is ReinforceLOOConfig"),
        ("trl_version: new", "trl_version expects a version such as"),
        ("beta: 1\nbeta: 2", "'beta' is given twice"),
        ("[1]", "expected lines of the form `option: value`, got a list"),
        ("!!python/object/apply:os.system [echo]", "could not determine a constructor"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(text, expected, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        ReinforceLOOConfig.from_yaml(tmp_path / "run.yaml")
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "run.json: not JSON"),
        ("[]", "expected a JSON object of options"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
    ],
)
def test_a_mistake_in_json_is_one_line(text, expected, tmp_path):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError) as caught:
        ReinforceLOOConfig.from_json(tmp_path / "run.json")
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("version", "more"), [("99.0", True), ("0.0.1", False)])
@pytest.mark.parametrize("key", ["trl_version", "trl_ext_version"])
def test_another_version_is_said(version, more, key, tmp_path):
    (tmp_path / "run.yaml").write_text(f"{key}: {version}\nuse_cpu: true\nbf16: false\noutput_dir: x\n")
    with pytest.warns(UserWarning, match=f"was written with {key[:-8]} {version}") as caught:
        ReinforceLOOConfig.from_yaml(tmp_path / "run.yaml")
    assert any("it may know options" in str(warning.message) for warning in caught) == more


def test_a_file_that_says_something_else_is_not_overwritten(tmp_path):
    path = tmp_path / "run.yaml"
    one, other = ReinforceLOOConfig(**CPU), ReinforceLOOConfig(**CPU, beta=0.2)
    one.to_yaml(path)
    one.to_yaml(path)
    with pytest.raises(UserError, match="exists and says something else: give another path, or overwrite=True"):
        other.to_yaml(path)
    assert path.read_text() == one.to_yaml()
    other.to_yaml(path, overwrite=True)
    assert path.read_text() == other.to_yaml()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="cannot write"):
        one.to_yaml(tmp_path / "no" / "folder.yaml")


def test_a_secret_is_left_out_and_said():
    config = ReinforceLOOConfig(**CPU, hub_token="hf_secret")
    with pytest.warns(UserWarning, match="hub_token is a secret"):
        assert "secret" not in config.to_yaml()


def test_what_no_file_can_hold_is_named():
    config = ReinforceLOOConfig(**CPU, model_init_kwargs={"dtype": torch.bfloat16})
    assert options_given(config)["model_init_kwargs"] == {"dtype": "bfloat16"}
    config = ReinforceLOOConfig(**CPU, model_init_kwargs={"hook": print})
    with pytest.raises(UserError, match="model_init_kwargs holds a builtin_function_or_method, which no file can hold"):
        config.to_yaml()
    with pytest.raises(UserError, match="which JSON has no number for: use to_yaml"):
        ReinforceLOOConfig(**CPU, generation_kwargs={"temperature": math.inf}).to_json()
    with pytest.raises(UserError, match="keys that are no words"):
        ReinforceLOOConfig(**CPU, generation_kwargs={1: 2}).to_json()


def test_what_is_recorded_is_pickled_as_plain_values(tmp_path):
    config = ReinforceLOOConfig(**CPU, accelerator_config={"split_batches": True}, lr_scheduler_type="cosine")
    recorded = {name: value for name, value in vars(config).items() if name.startswith("_options")}
    assert len(recorded) == 2
    text = pickle.dumps(recorded, protocol=0)
    assert b"c" not in {line[:1] for line in text.splitlines()}, "a pickle that imports nothing"
    again = pickle.loads(pickle.dumps(config))
    assert again.to_yaml() == config.to_yaml()


def test_a_configuration_pickled_by_an_older_version_can_be_written():
    config = ReinforceLOOConfig(**CPU, beta=0.2)
    for name in ("_options_given", "_options_made"):
        delattr(config, name)
    assert options_given(pickle.loads(pickle.dumps(config))) == CPU | {"beta": 0.2}


@pytest.mark.parametrize("kind", OURS)
def test_a_checkpoints_training_args_import_what_our_reader_allows(kind):
    imported = []

    class Recorder(pickle.Unpickler):
        def find_class(self, module, name):
            imported.append(Name(module, name))
            return super().find_class(module, name)

    config = kind(**CPU, lr_scheduler_type="cosine", model_init_kwargs={"dtype": torch.bfloat16})
    Recorder(io.BytesIO(pickle.dumps(config))).load()
    assert Name(kind.__module__, kind.__name__) in imported
    assert [str(name) for name in imported if danger(name, of_a_trainer=True) is not None] == []


def test_half_a_file_is_never_seen(tmp_path, monkeypatch):
    """The file appears in one move: where that fails, what was there stays, and nothing lies beside it."""
    path = tmp_path / "run.yaml"
    before = ReinforceLOOConfig(**CPU).to_yaml(path)

    def full(*_):
        assert path.read_text() == before, "written before it was whole"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="No space left on device"):
        ReinforceLOOConfig(**CPU, beta=0.2).to_yaml(path, overwrite=True)
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (True, 1, False),
        (1.0, 1, True),
        (math.nan, math.nan, True),
        ([1, {"a": False}], [1, {"a": 0}], False),
        ({"a": [math.nan]}, {"a": [math.nan]}, True),
    ],
)
def test_what_counts_as_the_same_value(one, other, expected):
    assert same(one, other) == expected
