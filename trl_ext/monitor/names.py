"""One line for a name nobody knows."""

from collections.abc import Iterable
from difflib import get_close_matches

from trl_ext.errors import UserError


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """`unknown rule 'kl_hihg': did you mean 'kl_high'? Known: ...`."""
    known = sorted(known)
    nearest = get_close_matches(str(name), known, n=1, cutoff=0.4)
    hint = f": did you mean {nearest[0]!r}?" if nearest else "."
    return UserError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")
