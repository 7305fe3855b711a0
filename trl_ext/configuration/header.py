"""Who wrote a configuration file: three keys beside its options, checked when it is read."""

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from ..errors import UserError

HEADER = ("config_class", "trl_ext_version", "trl_version")


def header_of(kind: type) -> dict[str, str]:
    """The three keys for a file that is written now."""
    return {"config_class": kind.__name__, "trl_ext_version": _ours(), "trl_version": version("trl")}


def check_header(content: Mapping[str, Any], kinds: Sequence[type], where: str) -> None:
    """A file without these keys passes.

    Raises:
        UserError: the file was written by a class that is none of `kinds`, or a key holds no version.
    Warns:
        where another version wrote it: a default that the file does not name may differ.
    """
    name, names = content.get("config_class"), [kind.__name__ for kind in kinds]
    if name is not None and name not in names:
        raise UserError(f"{where} was written by {name}, and this is {' with '.join(names)}: name a file of its own")
    for key, here in (("trl_ext_version", _ours()), ("trl_version", version("trl"))):
        if key not in content:
            continue
        wrote = str(content[key])
        try:
            newer = Version(wrote) > Version(here)
        except InvalidVersion:
            raise UserError(f"{where}: {key} expects a version such as {here}, got {content[key]!r}") from None
        if Version(wrote) != Version(here):
            package = key.removesuffix("_version")
            more = "; it may know options that this one does not" if newer else ""
            warnings.warn(
                f"{where} was written with {package} {wrote}, this is {here}: options that the file does not name "
                f"take the defaults of {here}{more}.",
                stacklevel=2,
            )


def _ours() -> str:
    """Without importing the package: a layer imports no public names."""
    try:
        return version("trl_ext")
    except PackageNotFoundError:  # run from a clone
        source = (Path(__file__).parents[1] / "__init__.py").read_text(encoding="utf-8")
        return source.partition('__version__ = "')[2].partition('"')[0]
