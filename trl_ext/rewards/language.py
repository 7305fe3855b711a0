"""Is a completion written in the script asked for?"""

import difflib
from functools import cache
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.options import check_texts, shown
from trl_ext.rewards.text import Completion, completion_text

# Of the about 170 scripts of Unicode those that are suggested; all of them can be asked for.
_KNOWN = (
    "Arabic", "Armenian", "Bengali", "Bopomofo", "Cherokee", "Cyrillic", "Devanagari", "Ethiopic", "Georgian", "Greek",
    "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew", "Hiragana", "Kannada", "Katakana", "Khmer", "Lao", "Latin",
    "Malayalam", "Mongolian", "Myanmar", "Oriya", "Sinhala", "Syriac", "Tamil", "Telugu", "Thaana", "Thai", "Tibetan",
    "Tifinagh", "Vai", "Yi",
)  # fmt: skip
_OF_LANGUAGES = {
    "english": "Latin", "german": "Latin", "french": "Latin", "spanish": "Latin", "vietnamese": "Latin",
    "russian": "Cyrillic", "ukrainian": "Cyrillic", "chinese": "Han", "japanese": "[Han, Hiragana, Katakana]",
    "korean": "Hangul", "hindi": "Devanagari", "persian": "Arabic", "urdu": "Arabic",
}  # fmt: skip


class ScriptReward:
    """Share of the letters of a completion that belong to the scripts asked for, in 0..1; `None` without letters.

    A script is no language: Latin is English and French alike. Digits, marks and white space do not count, and neither
    do the few letters that belong to no script (the micro sign). A letter that several scripts share (the ー of kana)
    belongs to each of them.

    Source: https://www.unicode.org/reports/tr24/ (Script_Extensions)

    Args:
        scripts: a name of Unicode, or a list of them, in any case: `Latin`, `[Han, Hiragana, Katakana]` for Japanese.
    Raises:
        UserError: an unknown script, with the nearest one.
    """

    __name__ = "script"

    def __init__(self, scripts: str | list[str]) -> None:
        names = [scripts] if isinstance(scripts, str) else scripts
        self.scripts = tuple(check_texts("script", "scripts", names, "[Latin]"))
        for name in self.scripts:
            _check_script(name)

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float | None]:
        letters, asked = _finders(self.scripts)
        return [_share(completion_text(completion), letters, asked) for completion in completions]


def _share(text: str, letters: Any, asked: Any) -> float | None:
    """Runs of letters are found, not single ones: a word costs what a letter would."""
    total = sum(map(len, letters(text)))
    return sum(map(len, asked(text))) / total if total else None


@cache
def _finders(scripts: tuple[str, ...]) -> tuple[Any, Any]:
    """Here, because naming rewards must stay quick; compiled patterns of `regex` are kept by process, not pickled."""
    import regex

    inside = "".join(rf"\p{{Script_Extensions={name}}}" for name in scripts)
    letters = regex.compile(r"[\p{L}--\p{Script_Extensions=Common}]+", regex.VERSION1)
    return letters.findall, regex.compile(rf"[\p{{L}}&&[{inside}]]+", regex.VERSION1).findall


def _check_script(name: str) -> None:
    import regex

    if name.replace("_", "").replace(" ", "").replace("-", "").isalpha() and name.isascii():
        try:
            regex.compile(rf"\p{{Script_Extensions={name}}}")
            return
        except regex.error:
            pass
    if script := _OF_LANGUAGES.get(name.strip().casefold()):
        raise UserError(f"script knows no script {shown(name)}, which is a language: write scripts: {script}")
    near = difflib.get_close_matches(name.strip().title(), _KNOWN, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"write one of Unicode's, such as {', '.join(_KNOWN[:8])}"
    raise UserError(f"script knows no script {shown(name)}: {hint}")
