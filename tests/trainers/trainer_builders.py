"""What the trainers' tests share: small models, rewards, builders, and oracles that use plain forwards alone."""

import os

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig

from trl_ext.tiny import byte_tokenizer, random_policy, random_scorer
from trl_ext.trainers import PPOConfig, PPOTrainer, ReinforceLOOConfig, ReinforceLOOTrainer

PROMPTS = ["sum 2 3", "say yes", "list a b", "count", "hello", "name it", "more x", "go"]
SMALL = {"hidden_size": 32, "intermediate_size": 64}
COMMON = {
    "per_device_train_batch_size": 16, "max_steps": 4, "learning_rate": 3e-3, "logging_steps": 1, "report_to": "none",
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True, "log_level": "error",
    "save_strategy": "no",
}  # fmt: skip
SGD = {"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "weight_decay": 0.0}
CLOCKS = ("step_time", "eps", "train_runtime", "train_samples_per_second", "train_steps_per_second")
LETTERS = {byte_tokenizer().convert_tokens_to_ids(chr(c)) for c in range(ord("a"), ord("z") + 1)}


def policy(seed=0):
    return random_policy(seed, **SMALL)


def scorer(seed=1, scale=20.0):
    """A reward or value model whose scores are of order 1."""
    model = random_scorer(seed, **SMALL)
    model.score.weight.data.mul_(scale)
    return model


def absolute_policy(seed=0):
    """A policy with learned absolute positions: left padding moves them unless the position ids say otherwise."""
    torch.manual_seed(seed)
    tokenizer = byte_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.transformer.wpe.weight.data.mul_(20)  # so that a wrong position shows
    return model


def prompts(repeat=4):
    return Dataset.from_dict({"prompt": PROMPTS * repeat})


def letter_share(completion_ids, **_):
    """A dense reward that a random policy can climb: the share of tokens that are lowercase letters."""
    return [sum(int(i) in LETTERS for i in ids) / max(len(ids), 1) for ids in completion_ids]


def loo_args(tmp_path, config=ReinforceLOOConfig, **kwargs):
    defaults = {**COMMON, "max_completion_length": 12, "num_generations": 4}
    return config(output_dir=str(tmp_path), **(defaults | kwargs))


def loo_trainer(tmp_path, trainer_class=ReinforceLOOTrainer, model=None, rewards=letter_share, dataset=None,
                trainer=None, config=ReinforceLOOConfig, **kwargs):  # fmt: skip
    """`trainer` holds arguments of the trainer, the other keywords are options of its config."""
    built = trainer_class(
        model or policy(), rewards, loo_args(tmp_path, config, **kwargs), train_dataset=dataset or prompts(),
        processing_class=byte_tokenizer(), **(trainer or {}),
    )  # fmt: skip
    built.remove_callback(PrinterCallback)
    return built


def ppo_args(tmp_path, **kwargs):
    """The tokenizer's EOS ends a completion: what both TRL lanes can do."""
    defaults = {**COMMON, "response_length": 12, "temperature": 1.0, "max_steps": -1,
                "stop_token": "eos", "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 4, "num_sample_generations": 0}  # fmt: skip
    return PPOConfig(output_dir=str(tmp_path), **(defaults | kwargs))


def ppo_trainer(tmp_path, reward_model=letter_share, model=None, dataset=None, trainer=None, **kwargs):
    built = PPOTrainer(
        ppo_args(tmp_path, **kwargs), byte_tokenizer(), model or policy(), None, reward_model, dataset or prompts(),
        **(trainer or {}),
    )  # fmt: skip
    built.remove_callback(PrinterCallback)
    return built


def stock_trainer(tmp_path, config=GRPOConfig, trainer=GRPOTrainer, model=None, **options):
    if config is RLOOConfig:  # it loads its reference by name
        policy().save_pretrained(tmp_path / "policy")
        model = str(tmp_path / "policy")
    common = {"max_completion_length": 12, "num_generations": 4, "per_device_train_batch_size": 16, "max_steps": 3}
    args = config(str(tmp_path / "run"), **(COMMON | common | {"beta": 0.0} | options))
    built = trainer(model or policy(), letter_share, args, train_dataset=prompts(), eval_dataset=prompts(1),
                    processing_class=byte_tokenizer())  # fmt: skip
    built.remove_callback(PrinterCallback)
    return built


def scored(trainer):
    """One batch of rollouts as the trainer scores it."""
    rows = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    return trainer._generate_and_score_completions(rows)


def whole(output):
    """(ids, mask) of prompts and completions."""
    return [torch.cat([output[f"prompt_{k}"], output[f"completion_{k}"]], 1) for k in ("ids", "mask")]


def unpadded(output):
    """(prompt ids, completion ids) of each row."""
    parts = []
    for name in ("prompt", "completion"):
        rows = zip(output[f"{name}_ids"], output[f"{name}_mask"], strict=True)
        parts.append([ids[mask.bool()] for ids, mask in rows])
    return list(zip(*parts, strict=True))


def plain_logps(model, output, temperature=1.0):
    """Row by row, without padding: full logits, log-softmax, gather. (B, T), 0 where nothing was sampled."""
    logps = torch.zeros(output["completion_ids"].shape)
    for row in range(len(logps)):
        prompt, completion = (
            output[f"{k}_ids"][row][output[f"{k}_mask"][row].bool()] for k in ("prompt", "completion")
        )
        with torch.no_grad():
            logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0].float() / temperature
        picked = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(-1, completion[:, None]).squeeze(-1)
        logps[row, : len(completion)] = picked
    return logps


def plain_values(trainer, output):
    """Row by row, without padding: V(state before each completion token) and, last, of the state after the last one."""
    model, rows = trainer.accelerator.unwrap_model(trainer.model), []
    function = trainer._value_function
    for row in range(len(output["completion_ids"])):
        prompt, completion = (
            output[f"{k}_ids"][row][output[f"{k}_mask"][row].bool()] for k in ("prompt", "completion")
        )
        ids = torch.cat([prompt, completion])[None]
        with torch.no_grad():
            if function.value_model is None:
                hidden = model.base_model(input_ids=ids).last_hidden_state
                values = function.head(hidden).squeeze(-1)[0]
            else:
                backbone = getattr(function.value_model, function.value_model.base_model_prefix)
                values = function.value_model.score(backbone(input_ids=ids).last_hidden_state).squeeze(-1)[0]
        rows.append(values[len(prompt) - 1 :])
    return rows


def weights(model):
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def log_rows(trainer, drop=CLOCKS):
    return [{k: v for k, v in row.items() if k not in drop} for row in trainer.state.log_history]


def fixed_rollouts(length=10, eos_every=0, least=3):
    """A `rollout_func` whose completions depend on (step, position in the global batch) alone; lengths differ.

    With `eos_every=n` each n-th completion ends with EOS; the others end with a byte.
    """

    def rollout(prompts, trainer):
        tokenizer, rank = trainer._tokenizer, trainer.accelerator.process_index
        completions = []
        for i in range(len(prompts)):
            position = rank * len(prompts) + i
            generator = torch.Generator().manual_seed(1000 * trainer.state.global_step + position)
            size = int(torch.randint(least, length + 1, (1,), generator=generator))
            ids = torch.randint(0, 256, (size,), generator=generator).tolist()
            if eos_every and position % eos_every == 0:
                ids[-1] = tokenizer.eos_token_id
            completions.append(ids)
        return {"prompt_ids": tokenizer(prompts)["input_ids"], "completion_ids": completions, "logprobs": None}

    return rollout


def advantages_written_out(rewards, values, gamma, lam):
    """A_t = sum_k (gamma lam)^k delta_{t+k}, on one row without holes."""
    values = [*values, 0.0]
    deltas = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    return torch.tensor([sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))])


def environment():
    """For a script in another process."""
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    path = os.pathsep.join([root, here, os.environ.get("PYTHONPATH", "")])
    return os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
