"""What the trainers of `bench_learning.py` learn: the prompts, one reward function, the policy to begin with."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from trl_ext import tiny
from trl_ext.data import load_reviews, prefixes, review_prompts
from trl_ext.rewards.json_schema import JsonSchemaReward
from trl_ext.rewards.length import LengthReward
from trl_ext.rewards.sentiment import SentimentReward, compound

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 10},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["text", "stars"],
    "additionalProperties": False,
}  # fmt: skip
FORMAT_STEPS = 150  # of supervised training, after which the format is known and often missed
WORDS = 12  # of a review that is written as JSON


class Task(NamedTuple):
    """
    Attributes:
        tokens: the longest completion.
        beta: coefficient of the KL, the same for every trainer. The JSON task has none, as is usual where a reward can
            be verified: there all maximise the reward alone.
        steps: of 64 completions.
        rates: learning rates that are tried.
    """

    tokens: int
    beta: float
    steps: int
    rates: tuple[float, ...]


TASKS = {"review": Task(24, 0.05, 120, (1e-4, 2e-4, 3e-4, 1e-3)), "json": Task(48, 0.0, 80, (1e-4, 3e-4, 1e-3, 2e-3))}


def prompts(task: str, split: str) -> list[str]:
    if task == "review":
        return review_prompts(split)["prompt"]
    rows = _json_rows(split)
    return list(dict.fromkeys(row["prompt"] for row in rows))


def reward_of(task: str) -> Any:
    """`(completions, **columns) -> list[float]`, with the TRL signature."""
    return _ReviewReward() if task == "review" else _JsonReward()


class _ReviewReward:
    """That of recipes/reinforce_loo.yaml: VADER's sentiment, and 0.3 for 16 to 24 tokens."""

    __name__ = "review"

    def __init__(self) -> None:
        self._sentiment = SentimentReward()
        self._length = LengthReward(minimum=16, maximum=24, edge=12, unit="tokens")

    def __call__(self, prompts: list, completions: list, completion_ids: list, **_: Any) -> list[float]:
        sentiment = self._sentiment(prompts=prompts, completions=completions)
        length = self._length(prompts=prompts, completions=completions, completion_ids=completion_ids)
        return [a + 0.3 * b for a, b in zip(sentiment, length, strict=True)]


class _JsonReward:
    """0.5 for one JSON object of the schema and nothing else, and 0.5 where its stars say of its text what VADER says:
    4 and 5 of praise, 1 and 2 of blame, 3 of neither."""

    __name__ = "json"

    def __init__(self) -> None:
        self._schema = JsonSchemaReward(SCHEMA, where="whole")

    def __call__(self, prompts: list, completions: list, **_: Any) -> list[float]:
        valid = self._schema(prompts, completions)
        return [
            0.5 + 0.5 * _agrees(json.loads(c)) if v == 1.0 else 0.0 for c, v in zip(completions, valid, strict=True)
        ]


def _agrees(review: dict[str, Any]) -> bool:
    feeling, stars = compound(review["text"]), review["stars"]
    return stars >= 4 if feeling > 0.2 else stars <= 2 if feeling < -0.2 else stars == 3


def start(task: str, folder: Path) -> str:
    """The policy that learning begins with, a folder. That of the JSON task is trained here once."""
    if task == "review":
        return str(tiny.PATH)
    made = folder / f"json_start_{FORMAT_STEPS}"
    if not (made / "config.json").exists():
        _teach_format(made)
    return str(made)


def _json_rows(split: str) -> list[dict[str, str]]:
    reviews = load_reviews(split)
    rows = []
    for text, rating in zip(reviews["text"], reviews["rating"], strict=True):
        opening = prefixes([text])
        if opening and '"' not in text and "\\" not in text:
            short = " ".join(text.split()[:WORDS])
            stars = round((rating + 4) / 2) + 1
            rows.append(
                {"prompt": opening[0] + "\n", "completion": json.dumps({"text": short, "stars": min(stars, 5)})}
            )
    return rows


def _teach_format(folder: Path) -> None:
    import torch
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    args = SFTConfig(
        str(folder / "sft"), max_steps=FORMAT_STEPS, per_device_train_batch_size=32, learning_rate=1e-3, use_cpu=True,
        bf16=False, report_to="none", save_strategy="no", gradient_checkpointing=False, disable_tqdm=True, seed=0,
        logging_steps=50, max_length=128,
    )  # fmt: skip
    tokenizer = tiny.load_tokenizer()
    trainer = SFTTrainer(tiny.load_policy(), args, train_dataset=Dataset.from_list(_json_rows("train")),
                         processing_class=tokenizer)  # fmt: skip
    trainer.train()
    trainer.save_model(str(folder))
    tokenizer.save_pretrained(str(folder))
