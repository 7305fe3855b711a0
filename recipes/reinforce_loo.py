"""REINFORCE with a leave-one-out baseline: the embedded policy learns to write praise, watched by the monitor.

    accelerate launch --config_file accelerate_configs/cpu.yaml recipes/reinforce_loo.py \\
        --config recipes/reinforce_loo.yaml
    accelerate launch recipes/reinforce_loo.py --config recipes/reinforce_loo.yaml --use_peft --bf16 \\
        --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/tldr --learning_rate 1e-5
"""

from trl import ModelConfig, get_peft_config

from trl_ext import (
    CheckpointHealthCallback,
    ConsoleCallback,
    PPOMonitoringCallback,
    ReinforceLOOConfig,
    ReinforceLOOTrainer,
    RewardReliabilityCallback,
    check_reward_funcs,
    drop_raw_logs,
    guard_reporting,
    load_reward_funcs,
    train,
)
from trl_ext.configuration import (
    RLScriptArguments,
    building,
    check_template,
    cli_errors,
    load_policy_and_tokenizer,
    load_value_model,
    parse,
)
from trl_ext.data import load_prompts
from trl_ext.reporting.finish import finish_run
from trl_ext.trainers.stopping_options import stopping_of

NEXT = {
    "make tensorboard": "curves of all runs",
    "make reinforce_loo ARGS='--beta 0.02'": "further from the reference: more reward, stranger texts",
    "make reinforce_loo ARGS='--baseline value'": "a learned value function instead of the other completions",
    "make ppo": "the same task with PPO",
}


@cli_errors()
def main(args: list[str] | None = None) -> None:
    with building():
        script_args, training_args, model_args = parse((RLScriptArguments, ReinforceLOOConfig, ModelConfig), args)
        stopping, eval_dataset = stopping_of(script_args, training_args)
        reward_funcs, training_args.reward_weights = load_reward_funcs(
            script_args.reward_funcs, training_args.reward_weights
        )
        dataset = load_prompts(
            script_args.dataset_name,
            script_args.dataset_train_split,
            script_args.dataset_prompt_column,
            script_args.dataset_config,
        )
        check_reward_funcs(reward_funcs, dataset)
        reliability = RewardReliabilityCallback(
            gold_reward=script_args.gold_reward,
            gold_every=script_args.gold_every,
            probe_set=script_args.probe_set,
            rescore_every=script_args.rescore_every,
        )
        model, tokenizer = load_policy_and_tokenizer(model_args, getattr(training_args, "trust_remote_code", False))
        check_template(tokenizer, dataset)
        value_model = load_value_model(script_args.value_model_name_or_path, model_args, tokenizer)
        monitor = PPOMonitoringCallback(on_critical=script_args.on_critical)
        checkpoints = CheckpointHealthCallback(on_critical=script_args.on_critical)
        console = ConsoleCallback(reward_funcs, samples_every=script_args.samples_every)
        trainer = ReinforceLOOTrainer(
            model,
            reward_funcs,
            training_args,
            train_dataset=dataset,
            eval_dataset=eval_dataset,
            value_model=value_model,
            processing_class=tokenizer,
            peft_config=get_peft_config(model_args),
            callbacks=[monitor, reliability, checkpoints, console, *stopping],
        )
        drop_raw_logs(trainer)
        guard_reporting(trainer)

    train(trainer, resume_from_checkpoint=training_args.resume_from_checkpoint)
    finish_run(trainer, monitor, NEXT, reliability)


if __name__ == "__main__":
    main()
