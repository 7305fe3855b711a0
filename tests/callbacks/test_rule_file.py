"""Rules in YAML: what is right reaches the engine, what is wrong is one line that names file, rule and key."""

import pytest

from trl_ext.callbacks._rule_file import read_rules
from trl_ext.errors import UserError
from trl_ext.monitor import Engine
from trl_ext.monitor.rules.custom import COMPARISONS, RULE_KEYS, custom_rule

RULE = {"name": "a", "metric": "loss", "comparison": ">", "value": 1}


def write(tmp_path, text):
    path = tmp_path / "rules.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def one(line):
    """The YAML of one rule that is right but for `line`, which replaces the key it starts with."""
    keys = {"name": "name: a", "metric": "metric: loss", "comparison": 'comparison: ">"', "value": "value: 1"}
    keys[line.split(":")[0]] = line
    return "- " + "\n  ".join(keys.values()) + "\n"


def test_a_file_of_rules_reaches_the_engine(tmp_path):
    path = write(
        tmp_path,
        """
- name: long
  metric: completions/mean_length
  comparison: ">="
  value: 2e2
  logs: 2
  severity: error
  message: answers are long
- {metric: my_metric, comparison: "<", value: -1.5}
""",
    )
    engine = Engine(rules=[], custom_rules=read_rules(path))
    for step, length in enumerate((200, 199, 200, 201), start=1):
        engine.observe(step, {"completions/mean_length": length, "my_metric": -1.5})
    (alert,) = engine.alerts
    assert (alert.rule, alert.opened, alert.severity) == ("long", 4, "error")
    assert alert.message.startswith("answers are long")
    assert len(read_rules(path)) == 2


def test_the_list_may_stand_under_rules(tmp_path):
    assert read_rules(write(tmp_path, "rules:\n" + one("name: a"))) == [RULE]


@pytest.mark.parametrize("text", ["1e-3", "1e3", "2.5E-7", "1.0e+3", "-1e2"])
def test_a_number_with_an_exponent_is_a_number(tmp_path, text):
    (rule,) = read_rules(write(tmp_path, one(f"value: {text}")))
    assert rule["value"] == float(text)


@pytest.mark.parametrize("comparison", list(COMPARISONS))
def test_every_comparison_of_the_engine_is_taken(tmp_path, comparison):
    (rule,) = read_rules(write(tmp_path, one(f'comparison: "{comparison}"')))
    assert custom_rule(rule).name == "a"


def test_every_key_of_the_engine_is_taken(tmp_path):
    text = one("name: a") + "  logs: 1\n  severity: info\n  message: text\n"
    (rule,) = read_rules(write(tmp_path, text))
    assert set(rule) == set(RULE_KEYS)
    custom_rule(rule)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("value: high", "value must be a number, not 'high'"),
        ("value: true", "value must be a number, not True"),
        ("value: .nan", "value must be a finite number, not nan"),
        ("value: -.inf", "value must be a finite number, not -inf"),
        ("logs: 0", "logs must be at least 1"),
        ("logs: 2.5", "logs must be a whole number, not 2.5"),
        ("severity: fatal", "severity must be one of info, warning, error, critical, not 'fatal'"),
        ("comparison: above", 'comparison must be one of >, >=, <, <=, ==, != in quotes'),
        ("metric: 5", "metric must be text, not 5"),
        ("metric: ''", "metric must not be empty"),
        ("serverity: error", "unknown key 'serverity': did you mean 'severity'?"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_named_with_file_and_rule(tmp_path, line, expected):
    path = write(tmp_path, one("name: first").replace("loss", "kl") + one(line))
    with pytest.raises(UserError) as error:
        read_rules(path)
    assert str(error.value).startswith(f"{path}, rule 'a': {expected}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- {name: a, metric: loss}", ", rule 'a': comparison and value missing"),
        ("- {metric: loss, comparison: '>', value: x}", ", rule 1: value must be a number"),
        (one("name: a") + one("name: a"), ", rule 'a': name is taken by another rule"),
        ("- {name: a, metric: loss, metric: kl}", ", line 1: 'metric' is given twice"),
        ("rules: []\nrules: []", ", line 2: 'rules' is given twice"),
        (one("comparison: >="), ", line 3: expected chomping or indentation indicators, but found '='; write the"),
        (one("comparison: >"), ", rule 'a': comparison must be one of >, >=, <, <=, ==, != in quotes"),
        (one("comparison: !="), ", line 3: could not determine a constructor for the tag '!='; write the comparison"),
        ("- [a", ", line 1: expected ',' or ']'"),
        ("", ": write a list of rules"),
        ("[]", ": write a list of rules"),
        ("name: a", ": write a list of rules"),
        ("- loss > 1", ", rule 1: write a mapping"),
        ("? [a]\n: 1", ""),
        ("- !!python/object/apply:os.getcwd []", ", line 1: could not determine a constructor"),
    ],
)
def test_a_file_that_is_no_list_of_rules_is_refused_in_one_line(tmp_path, text, expected):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as error:
        read_rules(path)
    assert str(error.value).startswith(f"{path}{expected}")
    assert "\n" not in str(error.value)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*none\.yaml: No such file"):
        read_rules(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match=r"cannot read .*binary\.yaml: no UTF-8 text"):
        read_rules(tmp_path / "binary.yaml")


def test_rules_in_python_go_to_the_engine_as_they_are():
    def rule(metrics):
        return None

    assert read_rules(None) == []
    assert read_rules([rule, RULE]) == [rule, RULE]
