"""One training of one trainer, in a process of its own; prints what came of it as one line of JSON.

python tests/benchmarks/learning/one_run.py '{"task": "review", "trainer": "grpo", "lr": 3e-4, "seed": 0}'
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

sys.path.insert(0, str(Path(__file__).parent))
from tasks import TASKS, prompts, reward_of, start

from trl_ext.configuration.mistakes import one_line

BATCH, GENERATIONS = 64, 8
HELD_OUT, SAMPLES = 256, 4
COMMON = {
    "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": 1, "report_to": "none", "use_cpu": True,
    "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True, "save_strategy": "no", "temperature": 1.0,
    "lr_scheduler_type": "linear", "logging_steps": 50, "log_level": "error",
}  # fmt: skip


class Recorded:
    """The reward function, and every reward it gave."""

    def __init__(self, function: Any) -> None:
        self.function, self.__name__ = function, function.__name__
        self.given: list[float] = []

    def __call__(self, **arguments: Any) -> list[float]:
        rewards = self.function(**arguments)
        self.given += rewards
        return rewards


def build(name: str, task: str, lr: float, seed: int, steps: int, folder: str, begin: str, reward: Recorded) -> Any:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(begin, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(begin, padding_side="left")
    data = Dataset.from_dict({"prompt": prompts(task, "train")})
    tokens, beta = TASKS[task].tokens, TASKS[task].beta
    options = COMMON | {"output_dir": folder, "learning_rate": lr, "seed": seed}
    if "ppo" in name:
        from trl_ext.compat import build_ppo_trainer, ppo_classes, value_model_of

        config_class, _ = ppo_classes("stock" if name == "stock_ppo" else "trl_ext")
        args = config_class(**options, total_episodes=BATCH * steps, response_length=tokens, stop_token="eos",
                            kl_coef=beta, vf_coef=1.0, num_ppo_epochs=2, num_mini_batches=1,
                            num_sample_generations=0)  # fmt: skip
        network = value_model_of(model) if name == "ppo_network" else None  # as stock PPO has
        return build_ppo_trainer(args, model, tokenizer, data, [reward], value_model=network)
    grouped = options | {
        "max_steps": steps,
        "num_generations": GENERATIONS,
        "max_completion_length": tokens,
        "beta": beta,
    }
    arguments = {"model": model, "reward_funcs": reward, "train_dataset": data, "processing_class": tokenizer}
    if name.startswith("reinforce_loo"):
        from trl_ext import ReinforceLOOConfig, ReinforceLOOTrainer

        extra = {"baseline": "value", "num_generations": 1, "vf_coef": 1.0} if name.endswith("value") else {}
        return ReinforceLOOTrainer(args=ReinforceLOOConfig(**(grouped | extra)), **arguments)
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    if name == "grpo":
        return GRPOTrainer(args=GRPOConfig(**grouped), **arguments)
    return RLOOTrainer(args=RLOOConfig(**grouped), **arguments)


@torch.no_grad()
def evaluate(policy: Any, begin: str, task: str, reward: Any) -> dict[str, float]:
    """The same for every trainer: four completions of each held-out prompt, at one seed, by Transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reference = AutoModelForCausalLM.from_pretrained(begin, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(begin, padding_side="left")
    policy.eval()
    torch.manual_seed(12345)
    rewards: list[float] = []
    divergences: list[float] = []
    asked = prompts(task, "test")[:HELD_OUT] * SAMPLES
    for at in range(0, len(asked), BATCH):
        batch = tokenizer(asked[at : at + BATCH], return_tensors="pt", padding=True)
        made = policy.generate(**batch, do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
                               max_new_tokens=TASKS[task].tokens)  # fmt: skip
        width = batch["input_ids"].size(1)
        ids = made[:, width:]
        ended = ids == tokenizer.eos_token_id
        mask = (ended.cumsum(1) - ended.int()) == 0
        attention = torch.cat([batch["attention_mask"], mask.long()], 1)
        logps = []
        for model in (policy, reference):
            logits = model(input_ids=made, attention_mask=attention).logits[:, width - 1 : -1]
            logps.append(logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1))
        divergences += ((logps[0] - logps[1]) * mask).sum(1).tolist()
        kept = [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]
        texts = tokenizer.batch_decode(kept, skip_special_tokens=True)
        rewards += reward(prompts=asked[at : at + BATCH], completions=texts, completion_ids=kept)
    return {"reward": sum(rewards) / len(rewards), "kl": sum(divergences) / len(divergences)}


def run(
    task: str, trainer: str, lr: float, seed: int, steps: int = 120, folder: str = "runs/learning"
) -> dict[str, Any]:
    begin = start(task, Path(folder))
    reward = Recorded(reward_of(task))
    with tempfile.TemporaryDirectory() as scratch:
        built = build(trainer, task, lr, seed, steps, scratch, begin, reward)
        began = time.monotonic()
        built.train()
        seconds = time.monotonic() - began
    curve = [sum(reward.given[at : at + BATCH]) / BATCH for at in range(0, BATCH * steps, BATCH)]
    policy = built.accelerator.unwrap_model(built.model)
    final = evaluate(getattr(policy, "policy", policy), begin, task, reward.function)
    return {"curve": curve, "samples": len(reward.given), "seconds": seconds, **final,
            "objective": final["reward"] - TASKS[task].beta * final["kl"]}  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    asked_for = json.loads(sys.argv[1])
    try:
        print(json.dumps(asked_for | run(**asked_for)))
    except Exception as error:
        print(f"{type(error).__name__}: {one_line(error)}", file=sys.stderr)
        raise
