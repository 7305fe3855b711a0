"""All checks, in an order in which each may rest on those before it."""

import os
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from trl_ext.configuration.mistakes import TRACEBACK

from .advantages import advantages
from .alignment import alignment
from .check import Check, Report, Status
from .dataset import dataset
from .gradient import gradient
from .masks import masks
from .mini_run import mini_run
from .names import FAMILIES
from .options import options
from .reference import reference
from .rewards import rewards
from .sample import Sample, sample
from .subject import MissingError, Subject
from .tokens import tokens

PACKAGE = str(Path(__file__).parents[1]) + os.sep
STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
Family = Callable[[Subject], Iterator[Check]]
CHECKS: dict[str, Family] = {
    "options": options,
    "dataset": dataset,
    "tokenizer": tokens,
    "alignment": alignment,
    "masks": masks,
    "reference": reference,
    "advantages": advantages,
    "rewards": rewards,
    "gradient": gradient,
    "mini_run": mini_run,  # last: it changes the policy
}


def preflight(
    trainer: Any,
    quick: bool = False,
    families: Iterable[str] | None = None,
    on_family: Callable[[str, list[Check], Sample], None] | None = None,
    stop_at_failure: bool = False,
) -> Report:
    """Checks a trainer that is about to train: options, data, tokenizer, log-probabilities, masks, reference,
    advantages, rewards, gradients, and three updates.

    It samples, learns and logs: build the trainer anew before the real run. Nothing is written into its `output_dir`.

    Args:
        trainer: of TRL or trl_ext, in one process: GRPO, RLOO, REINFORCE-LOO, trl_ext's PPO, SFT, reward, DPO.
        quick: fewer completions (64) and rows (1,000).
        families: those to run, of `FAMILIES`; all by default.
        stop_at_failure: whether the families behind one that fails are left out.
        on_family: called with a family's name, its checks and the sample to show, when it is done.
    Raises:
        UserError: a trainer of another kind.
    """
    subject = Subject(trainer, quick)
    wanted = [name for name in FAMILIES if families is None or name in set(families)]
    checks: list[Check] = []
    seconds: dict[str, float] = {}
    raised: dict[str, str] = {}
    shown: Sample = ()
    for name in wanted:
        start = time.monotonic()
        found = list(_guarded(name, subject, raised, checks))
        if name == "masks" and not any(check.name == "error" for check in found):
            shown = sample(subject)
        seconds[name] = time.monotonic() - start
        checks += found
        if on_family is not None:
            on_family(name, found, shown)
        if stop_at_failure and any(check.status == Status.FAIL for check in found):
            break
    return Report(subject.name, tuple(checks), seconds, shown)


def _guarded(name: str, subject: Subject, raised: dict[str, str], before: list[Check]) -> Iterator[Check]:
    """What a family raises would end the run as well: it is a failure of that family, and the others go on. Families
    that need the same fail at the same place: `raised` tells which was the first, place -> family. So does one that
    needs what a check `before` said is missing."""
    try:
        yield from CHECKS[name](subject)
    except torch.cuda.OutOfMemoryError as error:
        yield Check(name, "error", Status.FAIL, f"out of memory: {_first_line(error)}", {}, "Lower "
                    "per_device_train_batch_size and raise gradient_accumulation_steps; gradient_checkpointing=True; "
                    "an adapter (use_peft); shorter completions.")  # fmt: skip
    except Exception as error:
        if os.environ.get(TRACEBACK) == "1":
            traceback.print_exc()
        place = _place(error)
        notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
        kind = "" if isinstance(error, MissingError) else f"{type(error).__name__}: "
        message = f"{kind}{_first_line(error)}{notes}{place}"
        first = _told(before, error) or raised.setdefault(f"{type(error).__name__}{place or _innermost(error)}", name)
        if first != name:
            yield Check(name, "error", Status.SKIP, f"needs what failed in {first}")
            return
        yield Check(name, "error", Status.FAIL, message, {},
                    f"The run would end with it as well; {TRACEBACK}=1 shows where.")  # fmt: skip


def _told(before: list[Check], error: Exception) -> str | None:
    """The family with a failed check of the name that the error gives, or that its message has (`chat_template`)."""
    given, message = error.check if isinstance(error, MissingError) else None, str(error)
    return next((check.family for check in before if check.status == Status.FAIL
                 and (check.name == given or ("_" in check.name and check.name in message))), None)  # fmt: skip


def _innermost(error: BaseException) -> str:
    """The line that raised: messages differ by the batch and by what was noted, lines do not."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _place(error: BaseException) -> str:
    """Where the last line of the user's own code is on the way to it, such as in a reward function."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__)
           if "site-packages" not in frame.filename and "importlib" not in frame.filename
           and not frame.filename.startswith((PACKAGE, STANDARD_LIBRARY))
           and os.path.isfile(frame.filename)]  # fmt: skip
    return f" (in {own[-1].name}, {own[-1].filename}, line {own[-1].lineno})" if own else ""


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
