"""Direct preference optimisation: the policy learns to write what human judges preferred, without a reward model.

    accelerate launch --config_file accelerate_configs/cpu.yaml recipes/dpo.py --config recipes/dpo.yaml
    accelerate launch recipes/dpo.py --model_name_or_path Qwen/Qwen3-0.6B --use_peft --bf16 \\
        --dataset_name trl-lib/ultrafeedback_binarized --learning_rate 5e-6
"""

from datasets import Dataset
from trl import DPOConfig, DPOTrainer, ModelConfig, get_peft_config, get_quantization_config

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
from trl_ext.data import HELD_OUT, REVIEWS, load_preferences


def load_data(script_args: PreferenceArguments) -> tuple[Dataset, Dataset | None]:
    name = script_args.dataset_name

    def load(split: str, num_pairs: int) -> Dataset:
        pairs = load_preferences(name, split, script_args.dataset_config, num_pairs, script_args.min_gap)
        # Without `prompt` TRL takes the letters that both texts begin with for it: here half a word
        return pairs.add_column("prompt", [""] * len(pairs)) if name == REVIEWS else pairs

    train = load(script_args.dataset_train_split, script_args.num_pairs)
    return train, None if script_args.dataset_test_split == "none" else load(script_args.dataset_test_split, HELD_OUT)


@cli_errors()
def main(args: list[str] | None = None) -> None:
    with building():
        script_args, training_args, model_args = parse((PreferenceArguments, DPOConfig, ModelConfig), args)
        path = model_path(model_args.model_name_or_path, model_args.model_revision)
        train_dataset, eval_dataset = load_data(script_args)
        training_args.model_init_kwargs = init_kwargs(training_args, model_args)
        monitor = AnomalyDetectionCallback(on_critical=script_args.on_critical)
        checkpoints = CheckpointHealthCallback(on_critical=script_args.on_critical)
        trainer = DPOTrainer(
            model=path,
            args=training_args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            peft_config=get_peft_config(model_args),  # the reference is then the policy with its adapter off
            quantization_config=get_quantization_config(model_args),
            callbacks=[monitor, checkpoints, ConsoleCallback()],
        )
        drop_raw_logs(trainer)
        guard_reporting(trainer)
        if len(trainer.train_dataset) == 0:
            raise UserError(
                f"no pair has a prompt of fewer than {training_args.max_length} tokens; give a larger max_length"
            )

    train(trainer, resume_from_checkpoint=training_args.resume_from_checkpoint)
    save(trainer)
    say = trainer.accelerator.print
    say(f"saved: {training_args.output_dir}")
    if eval_dataset is not None:
        metrics = evaluate(trainer)
        accuracy, margin = metrics["eval_rewards/accuracies"], metrics["eval_rewards/margins"]
        say(f"held-out accuracy: {accuracy:.3f}, margin {margin:.3f} nats, {len(trainer.eval_dataset)} pairs")


if __name__ == "__main__":
    main()
