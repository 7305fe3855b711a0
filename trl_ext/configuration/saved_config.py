"""What makes a dataclass of options one that can be written, read, taken from a template and summarised."""

import os
from typing import Any

from .given import recording
from .saving import from_json, from_template, from_yaml, to_json, to_yaml


class SavedConfig:
    """For dataclasses of options: methods that write and read them, and a record of what was given."""

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        if "__post_init__" in cls.__dict__:
            cls.__post_init__ = recording(cls.__post_init__)  # type: ignore[attr-defined]

    def to_yaml(self, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> str:
        """See `trl_ext.configuration.saving.to_yaml`."""
        return to_yaml(self, path, overwrite)

    def to_json(self, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> str:
        """See `trl_ext.configuration.saving.to_json`."""
        return to_json(self, path, overwrite)

    def print_summary(
        self,
        model: Any = None,
        dataset_size: int | None = None,
        prompt_length: int | None = None,
        peft_config: Any = None,
        dtype: Any = None,
    ) -> None:
        """See `trl_ext.configuration.summary.print_summary`."""
        from .summary import print_summary

        print_summary(self, model, dataset_size, prompt_length, peft_config, dtype)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **overrides: Any):
        """See `trl_ext.configuration.saving.from_yaml`."""
        return from_yaml(cls, path, **overrides)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str], **overrides: Any):
        """See `trl_ext.configuration.saving.from_json`."""
        return from_json(cls, path, **overrides)

    @classmethod
    def from_template(cls, name: str, **overrides: Any):
        """See `trl_ext.configuration.saving.from_template`."""
        return from_template(cls, name, **overrides)
