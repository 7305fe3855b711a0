"""Supervised fine-tuning; it also trained the embedded policy, from scratch, on review sentences.

    python recipes/sft.py --config recipes/sft.yaml                                     a new policy, minutes on a CPU
    python recipes/sft.py --config recipes/sft.yaml --model_name_or_path trl_ext/tiny   train the embedded one further
    accelerate launch recipes/sft.py --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --use_peft

Without `model_name_or_path` a Qwen2-shaped policy and its tokenizer are made from the training texts.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config, get_quantization_config
from trl.models import unwrap_model_for_generation

from trl_ext import (
    AnomalyDetectionCallback,
    CheckpointHealthCallback,
    ConsoleCallback,
    UserError,
    drop_raw_logs,
    evaluate,
    guard_reporting,
    save,
    tiny,
    train,
)
from trl_ext.configuration import building, cli_errors, init_kwargs, model_path, parse
from trl_ext.data import REVIEWS, load_texts, prefixes


@dataclass
class ScriptArguments:
    """What to train on, and what to do with the result."""

    dataset_name: str = field(
        default=REVIEWS, metadata={"help": "`reviews`, `review_agent`, a local file or folder, or a hub id."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a hub dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_test_split: str = field(default="test", metadata={"help": "Held-out split; `none`: no held-out loss."})
    max_words: int | None = field(default=None, metadata={"help": "Train only on texts of at most that many words."})
    num_samples: int = field(default=6, metadata={"help": "Sample texts printed at the end."})
    max_new_tokens: int = field(default=48, metadata={"help": "Longest sample, in tokens."})
    on_critical: str = field(
        default="warn", metadata={"help": "On a critical alert: `warn`, or `stop` to save a checkpoint and stop."}
    )
    export_dir: str | None = field(
        default=None, metadata={"help": "Folder for the policy as float16 and its tokenizer, without training state."}
    )


def load_data(script_args: ScriptArguments, text_column: str) -> tuple[Dataset, Dataset | None]:
    def load(split: str) -> Dataset:
        return load_texts(script_args.dataset_name, split, text_column, script_args.dataset_config)

    train, most = load(script_args.dataset_train_split), script_args.max_words
    if most is not None:
        if text_column not in train.column_names:
            raise UserError(f"max_words counts words of texts, and there is no column {text_column!r}; drop max_words")
        train = train.filter(lambda row: len(row[text_column].split()) <= most)
        if len(train) == 0:
            raise UserError(f"no text has at most {most} words; give a larger max_words")
    return train, None if script_args.dataset_test_split == "none" else load(script_args.dataset_test_split)


def build_policy(shape: tiny.PolicyShape, training_args: SFTConfig, model_args: ModelConfig, train: Dataset) -> tuple:
    """The policy, a path for `SFTTrainer` to load or an untrained model, and its tokenizer (`None`: the path's own)."""
    if model_args.model_name_or_path:
        training_args.model_init_kwargs = init_kwargs(training_args, model_args)
        return model_path(model_args.model_name_or_path, model_args.model_revision), None
    if training_args.dataset_text_field not in train.column_names:
        raise UserError("only a dataset of texts can train a policy from scratch; set model_name_or_path")
    tokenizer = tiny.train_tokenizer(train[training_args.dataset_text_field], shape.vocab_size)
    return tiny.new_policy(shape, tokenizer, training_args.seed), tokenizer


@torch.no_grad()
def sample(trainer: SFTTrainer, prompts: list[str], max_new_tokens: int) -> list[str]:
    """One text for each prompt, sampled at temperature 1."""
    tokenizer: Any = trainer.processing_class
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(trainer.accelerator.device)
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        ids = model.eval().generate(**inputs, do_sample=True, top_k=0, max_new_tokens=max_new_tokens)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def export(trainer: SFTTrainer, folder: str) -> None:
    """The policy as float16 and its tokenizer, without training state; every process calls it."""
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # whole, also where they are divided
    if trainer.accelerator.is_main_process:
        model = trainer.accelerator.unwrap_model(trainer.model)
        half = {name: weight.half() if weight.is_floating_point() else weight for name, weight in weights.items()}
        model.save_pretrained(folder, state_dict=half)
        if isinstance(model, PreTrainedModel):  # an adapter has no configuration of its own
            model.config.dtype = "float16"
            model.config.save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)
        trainer.accelerator.print(f"exported: {folder}")


@cli_errors()
def main(args: list[str] | None = None) -> None:
    with building():
        script_args, shape, training_args, model_args = parse(
            (ScriptArguments, tiny.PolicyShape, SFTConfig, ModelConfig), args
        )
        text_column = training_args.dataset_text_field
        train_dataset, eval_dataset = load_data(script_args, text_column)
        model, tokenizer = build_policy(shape, training_args, model_args, train_dataset)
        monitor = AnomalyDetectionCallback(on_critical=script_args.on_critical)
        checkpoints = CheckpointHealthCallback(on_critical=script_args.on_critical)
        trainer = SFTTrainer(
            model=model,
            args=training_args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            peft_config=get_peft_config(model_args),
            quantization_config=get_quantization_config(model_args),
            callbacks=[monitor, checkpoints, ConsoleCallback()],
        )
        drop_raw_logs(trainer)
        guard_reporting(trainer)

    train(trainer, resume_from_checkpoint=training_args.resume_from_checkpoint)
    save(trainer)
    say = trainer.accelerator.print
    say(f"saved: {training_args.output_dir}")
    if eval_dataset is not None:
        metrics = evaluate(trainer)
        loss = metrics["eval_loss"]
        say(f"held-out loss: {loss:.3f} nats a token, perplexity {math.exp(loss):.1f}, {len(eval_dataset)} texts")
        if text_column in eval_dataset.column_names and script_args.num_samples:
            prompts = prefixes(eval_dataset[text_column])[: script_args.num_samples]
            for text in sample(trainer, prompts, script_args.max_new_tokens):
                say(f"sample: {text}")
    if script_args.export_dir:
        export(trainer, script_args.export_dir)


if __name__ == "__main__":
    main()
