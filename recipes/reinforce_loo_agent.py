"""An agent that learns which tools answer a question: REINFORCE-LOO over episodes of several turns, actions in JSON.

    python recipes/sft.py --config recipes/reinforce_loo_agent_sft.yaml            teaches the form of an episode first
    python recipes/reinforce_loo_agent.py --config recipes/reinforce_loo_agent.yaml

The environment is a SQLite database of the review snippets and arithmetic (`trl_ext/data/review_agent.py`); it needs no
network. The reward is whether the agent's number is the right one.
"""

from trl import ModelConfig, get_peft_config

from trl_ext import (
    CheckpointHealthCallback,
    ConsoleCallback,
    PPOMonitoringCallback,
    ReinforceLOOConfig,
    ReinforceLOOTrainer,
    RewardReliabilityCallback,
    drop_raw_logs,
    guard_reporting,
    load_reward_funcs,
    train,
)
from trl_ext.configuration import (
    RLScriptArguments,
    building,
    cli_errors,
    load_policy_and_tokenizer,
    load_value_model,
    parse,
)
from trl_ext.data import ReviewEnvironment, load_prompts
from trl_ext.reporting.finish import finish_run
from trl_ext.trainers.stopping_options import stopping_of

HELD_OUT = 256  # questions that are asked before and after, num_generations times each
NEXT = {
    "make tensorboard": "curves of all runs",
    "make reinforce_loo_agent ARGS='--mask json_actions'": "nothing but the actions learns",
    "make reinforce_loo_agent ARGS='--max_episode_turns 3'": "too short for an answer: nothing can be learned",
}


def solved(trainer: ReinforceLOOTrainer) -> float:
    """Share of the held-out questions that are answered with the right number, sampled as in training."""
    return trainer.evaluate()["eval_rewards/answered/mean"]


@cli_errors()
def main(args: list[str] | None = None) -> None:
    with building():
        script_args, training_args, model_args = parse((RLScriptArguments, ReinforceLOOConfig, ModelConfig), args)
        stopping, validation = stopping_of(script_args, training_args)
        reward_funcs, training_args.reward_weights = load_reward_funcs(
            script_args.reward_funcs, training_args.reward_weights
        )
        questions, held_out = (load_prompts(script_args.dataset_name, split) for split in ("train", "test"))
        reliability = RewardReliabilityCallback(rescore_every=script_args.rescore_every)
        model, tokenizer = load_policy_and_tokenizer(model_args, getattr(training_args, "trust_remote_code", False))
        monitor = PPOMonitoringCallback(on_critical=script_args.on_critical)
        checkpoints = CheckpointHealthCallback(on_critical=script_args.on_critical)
        console = ConsoleCallback(reward_funcs, samples_every=script_args.samples_every)
        trainer = ReinforceLOOTrainer(
            model,
            reward_funcs,
            training_args,
            train_dataset=questions,
            eval_dataset=validation or held_out.select(range(HELD_OUT)),
            value_model=load_value_model(script_args.value_model_name_or_path, model_args, tokenizer),
            environment_factory=ReviewEnvironment,
            processing_class=tokenizer,
            peft_config=get_peft_config(model_args),
            callbacks=[monitor, reliability, checkpoints, console, *stopping],
        )
        drop_raw_logs(trainer)
        guard_reporting(trainer)

    before = solved(trainer)
    train(trainer, resume_from_checkpoint=training_args.resume_from_checkpoint)
    after = solved(trainer)
    finish_run(trainer, monitor, NEXT, reliability)
    trainer.accelerator.print(f"Held-out questions answered rightly: {before:.1%} before, {after:.1%} after")


if __name__ == "__main__":
    main()
