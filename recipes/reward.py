"""A reward model from preference pairs: by default from what human judges thought of review sentences.

    accelerate launch --config_file accelerate_configs/cpu.yaml recipes/reward.py --config recipes/reward.yaml
    accelerate launch recipes/reward.py --model_name_or_path Qwen/Qwen3-0.6B --use_peft --bf16 \\
        --dataset_name trl-lib/ultrafeedback_binarized

The result is a reward function like any other, in the YAML of ppo.py or reinforce_loo.py:

    reward_funcs: [{name: reward_model, kwargs: {model_name_or_path: runs/reward}}]
"""

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset, concatenate_datasets
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import ModelConfig, RewardConfig, RewardTrainer, get_peft_config, get_quantization_config

from trl_ext import (
    AnomalyDetectionCallback,
    CheckpointHealthCallback,
    ConsoleCallback,
    UserError,
    drop_raw_logs,
    evaluate,
    guard_reporting,
    save,
    train,
)
from trl_ext.configuration import PreferenceArguments, building, cli_errors, init_kwargs, model_path, parse
from trl_ext.data import REVIEWS, degenerate_pairs, load_preferences
from trl_ext.rewards.sentiment import compound


@dataclass
class ScriptArguments(PreferenceArguments):
    """What to prefer."""

    num_degenerate_pairs: int = field(
        default=0,
        metadata={"help": "Further pairs of `reviews` alone: a real snippet, and a loop or word salad that must lose."},
    )


def load_data(script_args: ScriptArguments) -> tuple[Dataset, Dataset | None]:
    name, config, gap = script_args.dataset_name, script_args.dataset_config, script_args.min_gap
    train = load_preferences(name, script_args.dataset_train_split, config, script_args.num_pairs, min_gap=gap)
    if script_args.num_degenerate_pairs and name == REVIEWS:
        degenerate = degenerate_pairs(script_args.num_degenerate_pairs)
        train = concatenate_datasets([train.select_columns(["chosen", "rejected"]), degenerate])
    if script_args.dataset_test_split == "none":
        return train, None
    return train, load_preferences(name, script_args.dataset_test_split, config, min_gap=gap)


def load_tokenizer(path: str, training_args: RewardConfig, model_args: ModelConfig, train: Dataset) -> Any:
    """The model's tokenizer, padding on the right, once it is sure that it can write this data as TRL does."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        path,
        revision=model_args.model_revision,
        trust_remote_code=training_args.trust_remote_code,
        padding_side="right",
    )
    conversational = isinstance(train[0]["chosen"], list)
    if conversational and not (tokenizer.chat_template or training_args.chat_template_path):
        raise UserError(f"the data is messages and the tokenizer of {path!r} has no template; set chat_template_path")
    if not conversational and not (tokenizer.eos_token or training_args.eos_token):
        end = tokenizer.sep_token or "</s>"
        raise UserError(f"the tokenizer of {path!r} has no token that ends a text; set eos_token, say to {end!r}")
    return tokenizer


def prefer_scalar_head(training_args: RewardConfig, model_args: ModelConfig) -> None:
    """Options of loading and of LoRA: the score head is new, so an adapter must train and keep all of it."""
    training_args.model_init_kwargs = init_kwargs(training_args, model_args)
    model_args.lora_task_type = "SEQ_CLS"
    model_args.lora_modules_to_save = model_args.lora_modules_to_save or ["score"]


def vader_accuracy(pairs: Dataset) -> float:
    """Share of pairs that VADER orders as the judges did; where it sees no difference it has to guess: one half."""
    scores = [(compound(pair["chosen"]), compound(pair["rejected"])) for pair in pairs]
    return sum(0.5 if chosen == rejected else float(chosen > rejected) for chosen, rejected in scores) / len(scores)


@cli_errors()
def main(args: list[str] | None = None) -> None:
    with building():
        script_args, training_args, model_args = parse((ScriptArguments, RewardConfig, ModelConfig), args)
        path = model_path(model_args.model_name_or_path, model_args.model_revision)
        train_dataset, eval_dataset = load_data(script_args)
        tokenizer = load_tokenizer(path, training_args, model_args, train_dataset)
        prefer_scalar_head(training_args, model_args)
        monitor = AnomalyDetectionCallback(on_critical=script_args.on_critical)
        checkpoints = CheckpointHealthCallback(on_critical=script_args.on_critical)
        trainer = RewardTrainer(
            model=path,
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
        if len(trainer.train_dataset) == 0:
            raise UserError(f"no pair has at most {training_args.max_length} tokens; give a larger max_length")

    train(trainer, resume_from_checkpoint=training_args.resume_from_checkpoint)
    save(trainer)
    say = trainer.accelerator.print
    say(f"saved: {training_args.output_dir}")
    if eval_dataset is not None:
        held_out, metrics = len(trainer.eval_dataset), evaluate(trainer)  # without pairs longer than max_length
        say(f"held-out accuracy: {metrics['eval_accuracy']:.3f}, {held_out} pairs")
        if script_args.dataset_name == REVIEWS:
            say(f"VADER on the same pairs: {vader_accuracy(eval_dataset):.3f} (a tie counts half)")


if __name__ == "__main__":
    main()
