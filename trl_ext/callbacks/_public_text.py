"""What may be said in public of a text that a run produced: no secret, no path of this machine."""

import os
import re
from pathlib import Path

_SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8  # characters: a shorter value is a switch or a number
_SECRETS = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abpr]-|AKIA|AIza)[\w-]{12,}"  # of Hugging Face, GitHub and others
    r"|(?<=Bearer )[\w.~+/=-]{8,}"
    r"|(?<=://)[^\s/@]+(?=@)"  # user:password@
    r"|(?<![A-Za-z_])(?:api_?key|token|secret|password)=[^\s&'\"]{4,}",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w:/.~])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+~-]+){2,}[/\\]?")


def public(text: str) -> str:
    """`text` with secrets as `***`, and of absolute paths the last part alone.

    Secrets are the values of environment variables that are named like one, and what has the form of a token.
    """
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAMES.search(name):
            text = text.replace(value, "***")
    text = _SECRETS.sub("***", text).replace("file://", "")
    for folder in sorted({str(Path.cwd()), str(Path.home())}, key=len, reverse=True):
        if len(folder) > 1:  # with spaces, say, in which case the pattern sees no path
            text = text.replace(folder + os.sep, "")
    return _PATH.sub(lambda found: re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)
