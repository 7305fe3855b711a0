import pickle

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.language import ScriptReward


def share(text, scripts):
    (value,) = ScriptReward(scripts)(prompts=[""], completions=[text])
    return value


@pytest.mark.parametrize(
    ("text", "scripts", "value"),
    [
        ("hello", "Latin", 1.0),
        ("hello", "Cyrillic", 0.0),
        ("да yes", "Latin", 3 / 5),
        ("да yes", ["Latin", "Cyrillic"], 1.0),
        ("naïve Straße", "latin", 1.0),
        ("1, 2, 3! µ", "Latin", None),  # the micro sign is of no script
        ("", "Latin", None),
        ("x = 漢字 (2)", "Han", 2 / 3),
        ("スーパー", "Katakana", 1.0),  # ー is shared by the two kana
        ("日本のスーパー", ["Han", "Hiragana", "Katakana"], 1.0),
        ("مرحبا ok", "Arabic", 5 / 7),
        ("한국어", "Hang", 1.0),  # the code of ISO 15924
        ("γειά a", "Greek", 4 / 5),
    ],
)
def test_share_of_letters_counted_by_hand(text, scripts, value):
    assert share(text, scripts) == value
    assert share([{"role": "assistant", "content": text}], scripts) == value


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ("Cyrilic", "no script 'Cyrilic': did you mean 'Cyrillic'"),
        ("English", "which is a language: write scripts: Latin"),
        (["Latin", "japanese"], r"'japanese', which is a language: write scripts: \[Han, Hiragana, Katakana\]"),
        ("Qqqq", "write one of Unicode's, such as Arabic"),
        ("Latin}", "did you mean 'Latin'"),
        ("", "needs texts in scripts"),
        ([], "needs a list for scripts"),
        ([3], "needs texts in scripts, not 3"),
        (None, "needs a list for scripts"),
    ],
)
def test_an_unknown_script_is_one_line_with_the_nearest(scripts, message):
    with pytest.raises(UserError, match=message) as error:
        ScriptReward(scripts)
    assert "\n" not in str(error.value)


def test_pickles():
    copy = pickle.loads(pickle.dumps(ScriptReward("Latin")))
    assert copy(prompts=[""], completions=["да yes"]) == [3 / 5]
