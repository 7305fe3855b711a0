"""PPO: the embedded policy learns to write praise, watched by the monitor.

    accelerate launch --config_file accelerate_configs/cpu.yaml recipes/ppo.py --config recipes/ppo.yaml
    accelerate launch recipes/ppo.py --config recipes/ppo.yaml --model_name_or_path Qwen/Qwen3-0.6B --use_peft \\
        --dataset_name trl-lib/tldr --bf16 --learning_rate 1e-5

The same script drives trl_ext's PPO and, on TRL 1.12, the stock trainer (TRL_EXT_PPO=trl_ext asks for ours there too).
"""

from trl import ModelConfig, get_peft_config

from trl_ext import (
    CheckpointHealthCallback,
    ConsoleCallback,
    PPOMonitoringCallback,
    RewardReliabilityCallback,
    check_reward_funcs,
    drop_raw_logs,
    guard_reporting,
    load_reward_funcs,
    train,
)
from trl_ext.compat import build_ppo_trainer, ppo_classes
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
    "make ppo ARGS='--kl_coef 0.02'": "further from the reference: more reward, stranger texts",
    "make ppo ARGS='--reward_funcs sentiment length'": "another reward; names are in trl_ext/rewards/registry.py",
    "make reinforce_loo": "the same task without a value function",
}


@cli_errors()
def main(args: list[str] | None = None) -> None:
    with building():
        config_class, _ = ppo_classes()
        script_args, training_args, model_args = parse((RLScriptArguments, config_class, ModelConfig), args)
        stopping, eval_dataset = stopping_of(script_args, training_args)
        reward_funcs, reward_weights = load_reward_funcs(
            script_args.reward_funcs, getattr(training_args, "reward_weights", None)
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
        trainer = build_ppo_trainer(
            training_args,
            model,
            tokenizer,
            dataset,
            reward_funcs,
            reward_weights,
            peft_config=get_peft_config(model_args),
            callbacks=[monitor, reliability, checkpoints, console, *stopping],
            eval_dataset=eval_dataset,
            value_model=value_model,
        )
        drop_raw_logs(trainer)
        guard_reporting(trainer)

    train(trainer, resume_from_checkpoint=training_args.resume_from_checkpoint)
    finish_run(trainer, monitor, NEXT, reliability)


if __name__ == "__main__":
    main()
