"""The end of a run, for people: the plot beside the metrics, and the closing summary."""

from pathlib import Path

from trl_ext.errors import UserError
from trl_ext.monitor.reading import read_metrics
from trl_ext.reporting.plot import plot_run
from trl_ext.reporting.summary import run_summary
from trl_ext.reporting.terminal import closing_summary
from trl_ext.trainers.launch import save


def finish_run(trainer, monitor, next_commands: dict[str, str] | None = None, reliability=None) -> dict:
    """Save the policy, draw the run and print its summary, in the main process. Returns the summary of the metrics.

    Args:
        trainer: after training.
        monitor: the `PPOMonitoringCallback` that watched it.
        next_commands: command -> what it does, printed last.
        reliability: the `RewardReliabilityCallback` that watched its rewards.
    """
    save(trainer)
    if not trainer.accelerator.is_main_process:
        return {}
    paths = monitor.summary()["files"]
    metrics = Path(paths["metrics"])
    rows: list[dict] = []
    alerts = [*monitor.alerts, *(reliability.alerts if reliability is not None else [])]
    files = {
        trainer.args.output_dir: "the trained policy",
        str(metrics): "every log, one JSON object a line",
        paths["alerts"]: "what the monitor said",
        paths["summary"]: "the run in a few numbers",
        str(metrics.with_name("reward_reliability.json")): "how far the rewards can be trusted, and why",
        str(metrics.with_name("reward_samples.jsonl")): "the best, worst and most suspicious completions",
        str(metrics.with_name("reward_failures.jsonl")): "completions that a reward function failed on",
    }
    try:
        rows = read_metrics(metrics)
        title = Path(trainer.args.output_dir).name
        picture = plot_run(rows, metrics.with_name("run.png"), alerts=alerts, title=title)
        files[str(picture)] = "the run as a picture"
    except (UserError, OSError) as error:  # nothing logged, no matplotlib, a full disk: it is still a run
        print(f"No picture: {error}")
    files = {path: what for path, what in files.items() if Path(path).exists()}
    # where nothing could be written: what the trainer remembers
    summary = run_summary(rows or trainer.state.log_history)
    print(f"\n{closing_summary(summary, alerts, files, next_commands)}\n")
    return summary
