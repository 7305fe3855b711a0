"""What a run left behind, for people: its log read back, its closing summary in the terminal."""

import importlib

# Resolved on first use: the command line reads logs without waiting for Transformers, which some of these import
_HOME = {
    "closing_summary": "trl_ext.reporting.terminal",
    "log_line": "trl_ext.reporting.terminal",
    "open_log": "trl_ext.reporting.log_sources",
    "run_summary": "trl_ext.reporting.summary",
    "samples_table": "trl_ext.reporting.terminal",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'trl_ext.reporting' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)
