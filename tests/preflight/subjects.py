"""Trainers to look at, small and healthy until a test injures one."""

from datasets import Dataset
from peft import LoraConfig
from trainer_builders import letter_share, policy, scorer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PrinterCallback
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl import RLOOConfig as StockRLOOConfig

from trl_ext import tiny
from trl_ext.preflight import Status, preflight
from trl_ext.tiny import byte_tokenizer
from trl_ext.trainers import PPOConfig, PPOTrainer, ReinforceLOOConfig, ReinforceLOOTrainer

PROMPTS = [f"{word} {i}" for i in range(8) for word in ("sum", "say yes", "a list", "go on and on")]
COMMON = {
    "per_device_train_batch_size": 16, "max_steps": 40, "learning_rate": 1e-3, "report_to": "none", "use_cpu": True,
    "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True, "save_strategy": "no", "log_level": "error",
}  # fmt: skip
ROLLOUTS = {"max_completion_length": 12, "num_generations": 4, "temperature": 1.0}
LORA = {"lora_dropout": 0.0, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def prompts(texts=PROMPTS):
    return Dataset.from_dict({"prompt": list(texts)})


def variety(completions, **_):
    """A reward that neither an empty text nor a loop earns."""
    return [len(set(completion.split())) / 10 for completion in completions]


def embedded():
    """The policy that writes sentences which end."""
    return {
        "model": tiny.load_policy(), "tokenizer": tiny.load_tokenizer(), "dataset": prompts(tiny.prompts()[:40]),
        "rewards": variety, "max_completion_length": 24,
    }  # fmt: skip


def loo(tmp_path, rewards=letter_share, dataset=None, model=None, tokenizer=None, trainer=None, **options):
    args = ReinforceLOOConfig(str(tmp_path / "run"), **(COMMON | ROLLOUTS | options))
    return ReinforceLOOTrainer(
        model or policy(), rewards, args, train_dataset=dataset or prompts(),
        processing_class=tokenizer or byte_tokenizer(), **(trainer or {}),
    )  # fmt: skip


def loo_value(tmp_path, **options):
    return loo(tmp_path, baseline="value", num_generations=1, **options)


def loo_lora(tmp_path, **options):
    return loo(tmp_path, trainer={"peft_config": LoraConfig(**LORA)}, learning_rate=1e-3, **options)


def loo_quantised(tmp_path, model=None, **options):
    """The embedded policy in 4 bits, whatever model is asked for, with an adapter."""
    quantised = AutoModelForCausalLM.from_pretrained(
        tiny.PATH, quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    )
    return loo_lora(tmp_path, model=quantised, **options)


def grpo(tmp_path, rewards=letter_share, dataset=None, model=None, tokenizer=None, **options):
    args = GRPOConfig(str(tmp_path / "run"), **(COMMON | ROLLOUTS | {"beta": 0.0} | options))
    return GRPOTrainer(
        model or policy(), rewards, args, train_dataset=dataset or prompts(),
        processing_class=tokenizer or byte_tokenizer(),
    )  # fmt: skip


def by_name(tmp_path, model):
    """Stock trainers load the reference by the policy's name."""
    model.save_pretrained(tmp_path / "policy")
    return type(model).from_pretrained(tmp_path / "policy")


def rloo(tmp_path, rewards=letter_share, dataset=None, model=None, tokenizer=None, **options):
    model = by_name(tmp_path, model or policy())
    args = StockRLOOConfig(str(tmp_path / "run"), **(COMMON | ROLLOUTS | options))
    return RLOOTrainer(
        model=model, reward_funcs=rewards, args=args, train_dataset=dataset or prompts(),
        processing_class=tokenizer or byte_tokenizer(),
    )  # fmt: skip


def ppo(tmp_path, rewards=letter_share, dataset=None, model=None, tokenizer=None, max_completion_length=12, **options):
    steps = {"total_episodes": 640, "max_steps": -1, "response_length": max_completion_length, "stop_token": "eos",
              "num_ppo_epochs": 2, "learning_rate": 5e-5}  # fmt: skip
    args = PPOConfig(str(tmp_path / "run"), **(COMMON | steps | {"num_sample_generations": 0} | options))
    return PPOTrainer(args, tokenizer or byte_tokenizer(), model or policy(), reward_funcs=rewards,
                      train_dataset=dataset or prompts())  # fmt: skip


TEXTS = [f"{text} is what it says and no more" for text in PROMPTS]


def sft(tmp_path, texts=TEXTS, tokenizer=None, dataset=None, peft_config=None, **options):
    args = SFTConfig(str(tmp_path / "run"), **(COMMON | {"max_length": 64, "loss_type": "nll"} | options))
    return SFTTrainer(policy(), args, train_dataset=dataset or Dataset.from_dict({"text": list(texts)}),
                      processing_class=tokenizer or byte_tokenizer(), peft_config=peft_config)  # fmt: skip


def reward(tmp_path, pairs=None, **options):
    data = pairs or {"chosen": [f"good {t}" for t in TEXTS], "rejected": [f"bad {t} bad" for t in TEXTS]}
    args = RewardConfig(str(tmp_path / "run"), **(COMMON | {"max_length": 64} | options))
    return RewardTrainer(scorer(), args, train_dataset=Dataset.from_dict(data), processing_class=byte_tokenizer())


def dpo(tmp_path, model=None, tokenizer=None, dataset=None, **options):
    data = {"prompt": PROMPTS, "chosen": [" good"] * len(PROMPTS), "rejected": [" bad"] * len(PROMPTS)}
    args = DPOConfig(str(tmp_path / "run"), **(COMMON | {"max_length": 64} | options))
    return DPOTrainer(by_name(tmp_path, model or policy()), None, args,
                      train_dataset=dataset or Dataset.from_dict(data),
                      processing_class=tokenizer or byte_tokenizer())  # fmt: skip


HEALTHY = {
    "REINFORCE-LOO": loo, "with a value function": loo_value, "with LoRA": loo_lora,
    "with 4 bits and LoRA": loo_quantised, "GRPO": grpo, "RLOO": rloo,
    "PPO": ppo, "SFT": sft, "reward model": reward, "DPO": dpo,
}  # fmt: skip


def looked_at(trainer, *families):
    """By name, the checks of these families."""
    trainer.remove_callback(PrinterCallback)
    report = preflight(trainer, quick=True, families=families or None)
    return {check.name: check for check in report.checks}


def complaints(report):
    return [f"{c.family} {c.name}: {c.message}" for c in report.checks if c.status in (Status.WARN, Status.FAIL)]
