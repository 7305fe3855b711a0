"""`trl-ext config`: whole configurations to start from, and what follows from one."""

import argparse
from pathlib import Path

from trl_ext.configuration.templates import FOLDER, template_names, template_path


def add_config(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("config", help="list and show the templates of configurations")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    listing = actions.add_parser("list", help="the templates there are, and what each is for")
    listing.set_defaults(run=_list)

    showing = actions.add_parser(
        "show", help="print a template", epilog="trl-ext config show reinforce_loo small > run.yaml"
    )
    showing.add_argument("trainer", help=f"one of {', '.join(template_names())}")
    showing.add_argument("name", help="debug, small or full")
    showing.set_defaults(run=_show)


def _list(options: argparse.Namespace) -> int:
    for trainer, names in template_names().items():
        for name in names:
            print(f"{trainer:<14} {name:<6} {_purpose(FOLDER / trainer / f'{name}.yaml')}")
    print("\ntrl-ext config show TRAINER NAME > run.yaml writes one to change; a recipe takes it by --template NAME.")
    return 0


def _show(options: argparse.Namespace) -> int:
    print(template_path(options.trainer, options.name).read_text(encoding="utf-8"), end="")
    return 0


def _purpose(path: Path) -> str:
    """The first sentence of the comment that a template begins with."""
    text = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    return text.partition(": ")[0].partition(". ")[0].rstrip(".")
