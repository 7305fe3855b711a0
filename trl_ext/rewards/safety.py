"""A block list: words and phrases that no completion may hold."""

import os
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.block_list_pattern import BlockListPattern, plain
from trl_ext.rewards.options import check_flag, shown
from trl_ext.rewards.text import Completion, completion_text

_LONGEST = 100  # characters of a phrase: the engine nests no deeper


class BlockListReward:
    """1 for a clean completion, 0 for one that holds a blocked word or phrase; or -1 for each time it does.

    Whole words match, in any case: "ass" is not in "class". Between the words of a phrase may stand any white space,
    dots, underscores or hyphens. These disguises are seen through: compatibility letters (full width, bold, circled),
    zero-width characters and soft hyphens, digits and signs for letters (0 o, 1 ! | i l, 3 e, 4 @ a, 5 $ s, 7 t), and
    words that are spelled out (b a d, b.a.d, b-a-d). Others are not, such as look-alikes from another alphabet or
    repeated letters. A number alone ("455") is blocked only where it is listed as such. In scripts without spaces
    between words (Chinese, Japanese, Thai, Khmer, Lao, Burmese) a phrase matches anywhere.

    The time is linear in the length of the text and hardly depends on the length of the list.

    Args:
        phrases: words and phrases; or give `file`, or both.
        file: a text file in UTF-8 with one a line; blank lines and lines that start with # are skipped.
        per_hit: whether the reward is -1 for each hit, and 0 for a clean completion; default false.
    Raises:
        UserError: no phrases, one without a letter or digit or of more than 100 characters, a file that cannot be read.
    """

    __name__ = "block_list"

    def __init__(
        self,
        phrases: list[str] | None = None,
        file: str | os.PathLike[str] | None = None,
        per_hit: bool = False,
    ) -> None:
        if phrases is None and file is None:
            raise UserError("block_list needs phrases: [...], or file: a text file with one phrase a line")
        listed = [] if phrases is None else _check_phrases(phrases)
        if file is not None:
            listed += _read(file)
        self.per_hit = check_flag("block_list", "per_hit", per_hit)
        for phrase in listed:
            if not any(letter.isalnum() for letter in plain(phrase)):
                raise UserError(
                    f"block_list has the phrase {shown(phrase)}, which has no letter or digit: leave it out"
                )
            if len(plain(phrase)) > _LONGEST:
                raise UserError(f"block_list takes phrases of up to {_LONGEST} characters: shorten {shown(phrase)}")
        self._pattern = BlockListPattern(listed)

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        hits = [self._pattern.count(completion_text(completion)) for completion in completions]
        return [float(-count) if self.per_hit else float(count == 0) for count in hits]


def _check_phrases(phrases: Any) -> list[str]:
    if not isinstance(phrases, list | tuple) or not phrases:
        raise UserError(f"block_list needs a list for phrases, e.g. phrases: [word, some words], not {shown(phrases)}")
    for phrase in phrases:
        if not isinstance(phrase, str):
            raise UserError(f"block_list needs texts in phrases, not {shown(phrase)}: quote what YAML reads otherwise")
    return list(phrases)


def _read(file: Any) -> list[str]:
    if not isinstance(file, str | os.PathLike) or not str(file):
        raise UserError(f"block_list needs the path of a text file for file, not {shown(file)}")
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"block_list cannot read '{file}', which is no UTF-8 text: save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"block_list cannot read '{file}': {error.strerror}") from error
    lines = [line.strip() for line in text.splitlines()]
    phrases = [line for line in lines if line and not line.startswith("#")]
    if not phrases:
        raise UserError(f"block_list finds no phrase in '{file}': write one a line")
    return phrases
