"""Options from YAML and the command line, on top of TRL's parser, with every mistake reported in one line.

@cli_errors()
def main(args=None):
    with building():
        script_args, training_args, model_args = parse((ScriptArguments, PPOConfig, ModelConfig), args)
        trainer = PPOTrainer(model=model_path(model_args.model_name_or_path), ...)
    trainer.train()
"""

from .arguments import RLScriptArguments
from .mistakes import building, cli_errors, model_path, one_line
from .models import load_policy_and_tokenizer, load_value_model
from .parser import parse

__all__ = [
    "RLScriptArguments",
    "building",
    "cli_errors",
    "load_policy_and_tokenizer",
    "load_value_model",
    "model_path",
    "one_line",
    "parse",
]
