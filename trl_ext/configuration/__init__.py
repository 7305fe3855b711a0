"""Options from YAML and the command line, on top of TRL's parser, with every mistake reported in one line.

@cli_errors()
def main(args=None):
    with building():
        script_args, training_args, model_args = parse((ScriptArguments, PPOConfig, ModelConfig), args)
        trainer = PPOTrainer(model=model_path(model_args.model_name_or_path), ...)
    trainer.train()
"""

import importlib

# Resolved on first use: a list of templates needs no Transformers
_HOME = {
    "PreferenceArguments": "arguments",
    "RLScriptArguments": "arguments",
    "building": "mistakes",
    "check_template": "models",
    "cli_errors": "mistakes",
    "derived_numbers": "derived",
    "from_json": "saving",
    "from_template": "saving",
    "from_yaml": "saving",
    "init_kwargs": "models",
    "load_policy_and_tokenizer": "models",
    "load_value_model": "models",
    "memory_estimate": "memory",
    "model_path": "mistakes",
    "one_line": "mistakes",
    "parse": "parser",
    "print_summary": "summary",
    "to_json": "saving",
    "to_yaml": "saving",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__():
    return [*globals(), *__all__]
