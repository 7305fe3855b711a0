"""Before a GPU hour is spent: are log-probabilities, masks, reference, advantages, gradients and rewards right?

report = preflight(trainer)  # a trainer as a script builds it, before `train`
if report.failed:
    print(report_text(report))
"""

import importlib

_HOME = {
    "Check": "check",
    "Report": "check",
    "Status": "check",
    "preflight": "running",
    "report_text": "terminal",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    """Resolved on first use: the command line answers a mistake before TRL is loaded."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
