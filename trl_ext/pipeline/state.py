"""What a pipeline has done: `pipeline.json` in its folder, replaced in one move."""

import json
from pathlib import Path
from typing import IO, Any

from jsonschema import Draft202012Validator

from trl_ext.errors import UserError
from trl_ext.monitor.files import replace_json
from trl_ext.monitor.strict_json import NUMBER, is_strict_json
from trl_ext.pipeline.definition import Pipeline, Stage
from trl_ext.sweep.state import lock_folder

STATE_FILE = "pipeline.json"
_FACTS = Draft202012Validator({  # of one stage
    "type": "object", "required": ["recipe", "options", "from"],
    "properties": {
        "recipe": {"type": "string"}, "options": {"type": "object"}, "from": {"type": "object"},
        "made": {"type": "object", "additionalProperties": {"type": "integer"},
                 "propertyNames": {"pattern": r"^[^/\x00-\x1f]{1,255}\Z"}},
        "pid": {"type": "integer", "minimum": 1}, "created": NUMBER, "ended": NUMBER, "seconds": NUMBER,
    },
})  # fmt: skip


class PipelineState:
    """One pipeline at a time in a folder.

    Of each stage `pipeline.json` has what it was made of (`recipe`, `options`, and in `from` when each stage it starts
    from ended), its process while it runs, and once it is done `ended` (seconds since 1970) and `seconds`.
    """

    def __init__(self, pipeline: Pipeline, look_only: bool = False):
        """Opens the folder's file, or begins it.

        Args:
            look_only: nothing is written, and a pipeline may run meanwhile.
        Raises:
            UserError: a pipeline runs there now, the file is broken, or nothing can be written.
        """
        self.folder = Path(pipeline.output_dir)
        self._path = self.folder / STATE_FILE
        self._lock: IO[str] | None = None
        self.stages = read_state(self.folder)
        if look_only:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / ".lock", "w")  # noqa: SIM115 - held as long as the pipeline runs
            lock_folder(self._lock, self.folder, "pipeline")
        except OSError as error:
            raise UserError(f"cannot write into {self.folder}: {error.strerror}") from error
        self.stages = read_state(self.folder)  # as the pipeline before left it

    def begin(self, stage: Stage, **facts: Any) -> None:
        """It runs now."""
        self._set(stage, {**self.made_of(stage), **facts})

    def end(self, stage: Stage, ended: float, seconds: float) -> None:
        """It is done. The files it left are noted with their sizes: without one of them, whole, it has to run again."""
        files = sorted(path for path in Path(stage.options["output_dir"]).glob("*") if path.is_file())
        made = {path.name: path.stat().st_size for path in files}
        self._set(stage, {**self.made_of(stage), "ended": ended, "seconds": round(seconds, 1), "made": made})

    def made_of(self, stage: Stage) -> dict[str, Any]:
        """What decides whether a stage has to run again."""
        needs = {name: self.stages.get(name, {}).get("ended") for name in stage.needs}
        return json.loads(json.dumps({"recipe": Path(stage.recipe).name, "options": stage.options, "from": needs}))

    def differs(self, stage: Stage) -> str | None:
        """Why what was made, or begun, is not what this stage makes; None: it is."""
        was, now = self.stages.get(stage.name), self.made_of(stage)
        if was is None:
            return "it has not run"
        folder = Path(stage.options["output_dir"])
        if was.get("ended") is not None and not any(folder.glob("*")):
            return f"there is nothing in {folder}"
        for name, size in was.get("made", {}).items():
            found = _size(folder / name)
            if found is None:
                return f"{folder / name} is gone"
            if found != size and not name.endswith(".md"):  # a card may be written on
                return f"{folder / name} is not as long as it was"
        changed = [name for name in {**now["options"], **was["options"]}
                   if now["options"].get(name) != was["options"].get(name)]  # fmt: skip
        if changed or now["recipe"] != was["recipe"]:
            return f"{', '.join(sorted(changed)[:3]) or 'its recipe'} changed"
        again = [name for name in now["from"] if now["from"][name] != was["from"].get(name)]
        return f"{', '.join(again)} ran again" if again else None

    def is_done(self, stage: Stage) -> bool:
        return self.stages.get(stage.name, {}).get("ended") is not None and self.differs(stage) is None

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def _set(self, stage: Stage, facts: dict[str, Any]) -> None:
        self.stages[stage.name] = facts
        replace_json(self._path, {"stages": self.stages}, _cannot_write)


def _size(path: Path) -> int | None:
    """None: no file is there, or none can have that name."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def read_state(folder: Path) -> dict[str, dict[str, Any]]:
    """Stage -> what is known of it.

    Raises:
        UserError: the file is broken.
    """
    path = folder / STATE_FILE
    try:
        stages = json.loads(path.read_text(encoding="utf-8"))["stages"]
    except FileNotFoundError:
        return {}
    except NotADirectoryError as error:
        raise UserError(f"output_dir {folder} is a file: name a folder") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"cannot read {path}: remove it, and every stage runs again") from error
    if not isinstance(stages, dict) or not all(map(_FACTS.is_valid, stages.values())) or not is_strict_json(stages):
        raise UserError(f"{path} holds no state of a pipeline: remove it, and every stage runs again")
    return stages


def _cannot_write(path: Path, error: OSError) -> None:
    raise UserError(f"cannot write {path}: {error.strerror}") from error
