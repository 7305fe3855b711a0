"""What a run left behind, for people: the closing summary of a run in the terminal."""

from trl_ext.reporting.summary import run_summary
from trl_ext.reporting.terminal import closing_summary, log_line, samples_table

__all__ = ["closing_summary", "log_line", "run_summary", "samples_table"]
