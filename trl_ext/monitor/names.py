"""One line for a name nobody knows."""

from collections.abc import Iterable
from difflib import get_close_matches

from trl_ext.errors import UserError

_LISTED = 60  # names that still make one line


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """`unknown rule 'kl_hihg': did you mean 'kl_high'? Known: ...`."""
    known = sorted(known)
    nearest = get_close_matches(str(name), known, n=3, cutoff=0.4)
    hint = f": did you mean {nearest[0]!r}?" if nearest else "."
    listed = known if len(known) <= _LISTED else nearest
    if not listed:
        return UserError(f"unknown {kind} {name!r}: none of the {len(known)} that there are is like it")
    more = f" and {len(known) - len(listed)} more" if len(known) > len(listed) else ""
    return UserError(f"unknown {kind} {name!r}{hint} Known: {', '.join(listed)}{more}")
