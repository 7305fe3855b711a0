"""`torchrun --nproc_per_node N ddp_run.py OUT.json`: a few steps of each case, on completions fixed in advance.

One process and two processes so see the same batches; test_two_processes.py compares the logs and the final weights.
"""

import json
import os
import sys

import torch
from peft import LoraConfig
from trainer_builders import SGD, fixed_rollouts, loo_trainer, scorer

from trl_ext.callbacks import BestCheckpointCallback

BATCH = 16
CASES = ("loo", "value-model", "value-lora", "ema-target", "mean-follow", "loo-follow-lora", "greedy", "loo-json",
         "value-turn", "loo-stop", "value-dapo", "loo-accumulate")  # fmt: skip


def some_unscorable(completion_ids, **_):
    """Decided by the completion, so that it does not depend on the process."""
    return [None if ids[0] % 8 == 0 else sum(ids) / 1000 for ids in completion_ids]


def with_actions(prompts, trainer):
    """As fixed, and every other completion is an action in two turns."""
    output = fixed_rollouts(eos_every=3)(prompts, trainer)
    tokenizer, rank = trainer._tokenizer, trainer.accelerator.process_index
    for i in range(0, len(prompts), 2):
        number = (rank * len(prompts) + i) % 7
        output["completion_ids"][i] = tokenizer(f'{{"a":{number}}}x{{"b":0}}')["input_ids"][:12]
    output["env_mask"] = [[int(at != 7) for at in range(len(ids))] for ids in output["completion_ids"]]
    return output


def sampled_as_fixed(trainer):
    """Greedy completions are generated; what is sampled is fixed."""
    original, rollout = trainer._generate_single_turn, fixed_rollouts(eos_every=3)

    def generate(prompt_ids, *args, **kwargs):
        if not trainer.generation_config.do_sample:
            return original(prompt_ids, *args, **kwargs)
        return rollout([""] * len(prompt_ids), trainer)["completion_ids"], None

    trainer._generate_single_turn = generate


def baseline_of(case):
    return case.split("-")[0]


def train(case, folder, processes):
    extra = {"rollout_func": with_actions if case in ("loo-json", "value-turn") else fixed_rollouts(eos_every=3)}
    if case == "greedy":
        del extra["rollout_func"]
    if case == "value-model":
        extra["value_model"] = scorer(3)
    options = SGD | {"learning_rate": 0.3}
    if "target" in case:  # the coefficient of the KL and the entropy bonus move
        options |= {"kl_target": 0.01, "kl_horizon": 50, "entropy_coef": 0.3, "entropy_decay": 0.5}
    if "accumulate" in case:  # one process: 2 micro-batches of half, two processes: of a quarter
        options |= {"gradient_accumulation_steps": 2, "entropy_coef": 0.5, "num_iterations": 1}
    if baseline_of(case) == "mean":  # some completions are longer
        options |= {"max_episode_len": 8, "max_completion_length": 8}
    if "follow" in case:
        options |= {"reference": "ema", "ema_tau": 0.5}
    if "lora" in case:
        extra["peft_config"] = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    if case == "loo-json":
        options |= {"mask": "json_actions", "invalid_json": "penalise", "invalid_json_penalty": 0.3}
    if case == "value-turn":
        options |= {"gae_steps": "turn", "gamma": 0.9}
    if case == "value-dapo":  # over the tokens of all processes
        options |= {"loss_type": "dapo"}
    if case == "loo-stop":  # stops early where the best is the first
        extra["callbacks"] = [BestCheckpointCallback("reward", greater_is_better=False, patience=1)]
        options |= {"max_steps": 12}
    baseline = baseline_of(case)
    options = {"num_iterations": 2, "gradient_accumulation_steps": 1} | options
    options["per_device_train_batch_size"] = BATCH // processes // options["gradient_accumulation_steps"]
    trainer = loo_trainer(
        folder, rewards=some_unscorable, baseline=baseline, beta=0.1, whiten_rewards=baseline == "value",
        advantage_normalize="batch" if baseline == "value" else "none", trainer=extra, **options,
    )  # fmt: skip
    if case == "greedy":
        sampled_as_fixed(trainer)
    trainer.train()
    named = {k: p.double() for k, p in trainer.accelerator.unwrap_model(trainer.model).named_parameters()}
    return {
        "logs": trainer.state.log_history,
        "norms": {k: p.norm().item() for k, p in named.items()},
        "probes": {k: (p.flatten() @ torch.arange(p.numel()).double().cos()).item() for k, p in named.items()},
        "processes": processes,
    }


def main(out):
    torch.set_num_threads(1)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    results = {case: train(case, f"{out}.{case}", processes) for case in CASES}
    if int(os.environ.get("RANK", 0)) == 0:
        with open(out, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1])
