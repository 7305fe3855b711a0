import math

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards import REWARDS, CheckedReward, load_reward_funcs

BAND = {"minimum": 1, "maximum": 2}

OWN = """
CALLS = []

def word_count(prompts, completions, **kwargs):
    return [len(c.split()) for c in completions]

def at_least(prompts, completions, threshold=2, **kwargs):
    return [float(len(c.split()) >= threshold) for c in completions]

def make_constant(value):
    return Constant(value)

class Constant:
    def __init__(self, value=1.0):
        self.value = value

    def __call__(self, prompts, completions, **kwargs):
        return [self.value] * len(completions)

def narrow(prompts, completions):
    return [0.0] * len(completions)

def make_nothing(value=None):
    return value

NUMBER = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module: importable by its name, and a file."""
    (tmp_path / "own_rewards_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return str(tmp_path / "own_rewards_of_a_user.py")


def ask(reward, *completions):
    return reward(prompts=[""] * len(completions), completions=list(completions))


def one(spec):
    (reward,), (weight,) = load_reward_funcs([spec])
    return reward, weight


def test_a_name_and_a_mapping_mean_the_same():
    plain, weight = one("repetition")
    mapped, mapped_weight = one({"name": "repetition", "kwargs": {"n": 2}})
    assert ask(plain, "a b a b") == ask(mapped, "a b a b") == [2 / 3]
    assert weight == mapped_weight == 1.0


def test_functions_and_weights_keep_the_order_of_the_specs():
    specs = [{"name": "repetition", "weight": 2}, "sentiment", {"name": "length", "weight": -0.5, "kwargs": BAND}]
    rewards, weights = load_reward_funcs(specs)
    assert [reward.__name__ for reward in rewards] == ["repetition", "sentiment", "length"]
    assert weights == [2.0, 1.0, -0.5]
    assert all(isinstance(reward, CheckedReward) for reward in rewards)


@pytest.mark.parametrize("form", ["own_rewards_of_a_user:{}", "own_rewards_of_a_user.{}", "{file}:{}"])
def test_own_functions_are_found_by_dotted_path_and_by_file(own, form):
    reward, _ = one(form.format("word_count", file=own))
    assert ask(reward, "a b c", "a") == [3.0, 1.0]
    assert reward.__name__ == "word_count"


def test_kwargs_reach_a_function_a_class_and_a_factory(own):
    bound, _ = one({"name": f"{own}:at_least", "kwargs": {"threshold": 3}})
    made, _ = one({"name": f"{own}:Constant", "kwargs": {"value": 0.25}})
    built, _ = one({"name": f"{own}:make_constant", "kwargs": {"value": 0.75}})
    assert ask(bound, "a b", "a b c") == [0.0, 1.0]
    assert ask(made, "a") == [0.25]
    assert ask(built, "a") == [0.75]
    assert [f.__name__ for f in (bound, made, built)] == ["at_least", "Constant", "Constant"]


def test_two_functions_of_a_file_share_its_module(own):
    rewards, _ = load_reward_funcs([f"{own}:word_count", f"{own}:at_least"])
    assert rewards[0].func.__globals__["CALLS"] is rewards[1].func.__globals__["CALLS"]


def test_functions_of_one_name_get_names_of_their_own(own):
    specs = ["repetition", f"{own}:word_count", "repetition", {"name": "repetition", "kwargs": {"n": 3}}]
    rewards, _ = load_reward_funcs(specs)
    assert [reward.__name__ for reward in rewards] == ["repetition", "word_count", "repetition_2", "repetition_3"]


def test_a_model_is_returned_as_it_is(tmp_path):
    import torch

    (tmp_path / "models.py").write_text("import torch\nmodel = torch.nn.Linear(1, 1)\n")
    reward, _ = one(f"{tmp_path}/models.py:model")
    assert isinstance(reward, torch.nn.Linear)


def refused(spec):
    with pytest.raises(UserError) as error:
        load_reward_funcs(spec)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_unknown_reward_names_the_nearest_and_all_there_are():
    said = refused("sentimnet")
    assert "no reward 'sentimnet' (did you mean 'sentiment'?)" in said
    assert all(name in said for name in REWARDS)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ([], "No reward function is named: write reward_funcs:"),
        (None, "No reward function is named"),
        ([3], "3 has none: write reward_funcs: [{name: sentiment"),
        ([{"weight": 1.0}], "needs a name"),
        ([{"name": "length", "wieght": 1.0}], "'length' has the unknown key 'wieght' (did you mean 'weight'?)"),
        ([{"name": "repetition", "weight": "high"}], "has the weight 'high': write a number"),
        ([{"name": "repetition", "weight": True}], "has the weight True"),
        ([{"name": "repetition", "weight": math.nan}], "has the weight nan"),
        ([{"name": "repetition", "kwargs": [1]}], "has the kwargs [1]: write a mapping"),
        ([{"name": "repetition", "kwargs": {"m": 1}}], "'repetition' has no argument 'm': its arguments are n"),
        ([{"name": "sentiment", "kwargs": {"n": 1}}], "its arguments are none"),
        ([{"name": "length", "kwargs": {**BAND, "units": "words"}}], "no argument 'units' (did you mean 'unit'?)"),
        (["get_soft_overlong_punishment"], "needs max_completion_len, soft_punish_cache: write them under kwargs"),
        (
            [{"name": "length", "kwargs": {**BAND, "edge": "wide"}}],
            "length needs a number for edge, e.g. 1.0, not 'wide'",
        ),
        (["no_such_package.module.f"], "there is no module 'no_such_package' on the Python path"),
        (["trl_ext.rewards.text:completion"], "has no 'completion': did you mean 'completion_text'?"),
        (["nowhere/rewards.py:f"], "There is no reward file 'nowhere/rewards.py'"),
        (["rewards.py"], "no function in it: write rewards.py:my_reward"),
        ([":f"], "is no path of a reward"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(spec, said):
    assert said in refused(spec)


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("at_least", {"treshold": 3}, "no argument 'treshold' (did you mean 'threshold'?)"),
        ("at_least", {"completions": 3}, "no argument 'completions'"),
        ("narrow", {}, "cannot be called as TRL does"),
        ("make_nothing", {}, "cannot be called as TRL does"),
        ("Constant", {"valeu": 3}, "no argument 'valeu' (did you mean 'value'?)"),
        ("NUMBER", {}, "is no function but int"),
        ("wordcount", {}, "has no 'wordcount': did you mean 'word_count'?"),
    ],
)
def test_a_mistake_about_an_own_function_is_answered_too(own, name, kwargs, said):
    assert said in refused([{"name": f"{own}:{name}", "kwargs": kwargs}])


def test_an_own_file_that_fails_is_told_apart_from_one_that_is_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("import no_such_library_of_mine\n")
    said = refused(f"{tmp_path}/broken_rewards.py:f")
    assert "cannot be imported: ModuleNotFoundError: No module named 'no_such_library_of_mine'" in said
    monkeypatch.syspath_prepend(tmp_path)
    assert "cannot be imported: ModuleNotFoundError" in refused("broken_rewards:f")
    (tmp_path / "broken_rewards.py").write_text("def f(prompts, completions, **kwargs): return [1.0]\n")
    assert ask(one(f"{tmp_path}/broken_rewards.py:f")[0], "a") == [1.0]  # mended, it loads


def test_what_becomes_of_failures_is_written_beside_the_name():
    (plain, careful), _ = load_reward_funcs(
        ["sentiment", {"name": "repetition", "on_failure": -1, "timeout": 2.5}], failures_dir="somewhere"
    )
    assert (plain.on_failure, plain.timeout) == ("none", 300.0)
    assert (careful.on_failure, careful.timeout) == (-1.0, 2.5)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"name": "repetition", "on_failure": "warn"}, "'repetition': on_failure must be 'raise', 'none' or a number"),
        ({"name": "repetition", "timeout": -1}, "'repetition': timeout must be a number of seconds"),
        ({"name": "clip", "kwargs": {"reward": "sentimet", "maximum": 1}}, "Reward 'clip', reward: There is no reward"),
        (
            {"name": "weighted_sum", "kwargs": {"rewards": [{"name": "sentiment", "weight": 2}]}},
            "'sentiment' has a weight; write weights: [...]",
        ),
        ("runs/nowhere", "runs/nowhere"),
        (
            {"name": "clip", "kwargs": {"reward": {"name": "sentiment", "on_failure": 1}, "maximum": 1}},
            "the outer name",
        ),
        ("{name: length, wieght: 2}", "has the unknown key 'wieght' (did you mean 'weight'?)"),
        ("{name: length", "cannot be read"),
    ],
)
def test_a_mistake_further_in_is_answered_too(spec, said):
    assert said in refused([spec])


def test_reward_weights_of_trl_stand_in_for_weights_beside_the_names():
    assert load_reward_funcs(["sentiment", "repetition"], [2, 0.5])[1] == [2.0, 0.5]


@pytest.mark.parametrize(
    ("specs", "weights", "said"),
    [
        (["sentiment"], [1.0, 2.0], r"reward_weights has 2 numbers for 1 reward functions \(sentiment\)"),
        (["sentiment", "repetition"], [1.0], r"reward_weights has 1 numbers for 2 reward functions"),
        ([{"name": "sentiment", "weight": 0.5}], [1.0], "weights are given twice"),
        (["sentiment"], ["high"], "reward_weights has 'high': write numbers"),
    ],
)
def test_weights_that_do_not_fit_are_named(specs, weights, said):
    with pytest.raises(UserError, match=said):
        load_reward_funcs(specs, weights)


def test_rewards_nest():
    spec = {
        "name": "gate",
        "kwargs": {
            "reward": {"name": "clip", "kwargs": {"reward": "sentiment", "minimum": 0, "maximum": 0.5}},
            "condition": {"name": "repetition"},
            "threshold": 0.9,
            "otherwise": -1.0,
        },
    }
    reward, _ = one(spec)
    assert ask(reward, "what a great wonderful film", "great great great great") == [0.5, -1.0]
    assert reward.__name__ == "gate"


def test_a_mapping_on_the_command_line_is_read_as_yaml():
    reward, weight = one("{name: repetition, weight: 0.5, kwargs: {n: 1}}")
    assert (ask(reward, "a a b c"), weight) == ([0.75], 0.5)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"name": "length", "weight": 1e19}, "has the weight 1e\\+19"),
        ({"name": "length", "on_failure": 1e39}, "not 1e\\+39; the largest is 1e15"),
        ({"name": "length", "on_failure": -1e12, "weight": 1e9}, "gives -1e\\+12 on_failure, times the weight 1e\\+09"),
        ({"name": "keywords", "kwargs": {"weights": {"good": 1e300}}}, "not 1e\\+300; the largest is 1e15"),
        ({"name": "regex", "kwargs": {"pattern": "a", "match": 1e39}}, "number for match, .* the largest is 1e15"),
        ({"name": "clip", "kwargs": {"reward": "length", "maximum": 10**400}}, "the largest is 1e15"),
        ({"name": "os.system", "kwargs": {"command": "touch made"}}, "is Python's own and no reward"),
        ({"name": "shutil:rmtree", "kwargs": {"path": "."}}, "is Python's own and no reward"),
        ("{name: " * 2000, "cannot be read"),
    ],
)
def test_what_would_overflow_or_run_something_else_is_refused(spec, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        load_reward_funcs([spec])
    assert list(tmp_path.iterdir()) == []


def test_reward_weights_that_would_overflow_are_refused():
    with pytest.raises(UserError, match=r"reward_weights has 1e\+30"):
        load_reward_funcs(["length"], [1e30])


@pytest.mark.parametrize(("weight", "value", "given"), [(1e6, 1e9, 1e9), (1e6, 1.1e9, None), (1e-6, 1e15, 1e15)])
def test_what_is_too_large_is_so_with_its_weight(own, weight, value, given):
    reward, _ = one({"name": own + ":make_constant", "kwargs": {"value": value}, "weight": weight})
    assert ask(reward, "a") == [given]


def test_rewards_nest_only_so_deep():
    def nested(levels):
        spec = "length"
        for _ in range(levels):
            spec = {"name": "clip", "kwargs": {"reward": spec, "maximum": 1.0}}
        return spec

    reward, _ = one(nested(31))
    assert ask(reward, "a b c d e f g h i j k l") == [1.0]
    with pytest.raises(UserError, match=r"^rewards are nested too deeply in each other: at most 32 levels$"):
        one(nested(200))
