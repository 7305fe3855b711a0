"""What breaks a tiny run: rewards, and changes of a model, a tokenizer, a dataset or a trainer."""

import random
from typing import Any

import torch
from transformers import DataCollatorForLanguageModeling, TrainerCallback

from detection.tiny_runs import STEPS, sentiment

HALF = STEPS // 2


def nan(texts, ids, call):
    return [float("nan") if call >= HALF else r for r in sentiment(texts, ids, call)]


def constant(texts, ids, call):
    return [1.0 if call >= HALF else r for r in sentiment(texts, ids, call)]


def inverted(texts, ids, call):
    return [-r if call >= HALF else r for r in sentiment(texts, ids, call)]


def long_texts(texts, ids, call):
    """Pays for each word."""
    return [len(text.split()) / 16 for text in texts]


def kind_words(texts, ids, call):
    """Pays for each word of praise, however often it comes: "good good good" wins."""
    praise = {"good", "great", "best", "love", "funny", "fun", "beautiful", "wonderful", "well", "perfect"}
    return [min(1.0, sum(w.strip(".,!") in praise for w in text.lower().split()) / 6) for text in texts]


class _Frozen(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        optimizer.step = lambda *_, **__: None


def frozen(trainer):
    trainer.add_callback(_Frozen())
    if hasattr(trainer, "policy_model"):  # stock PPO has its optimizer already, and hands out none
        trainer.optimizer.step = lambda *_, **__: None
        trainer.callback_handler.callbacks.pop()
    return trainer


def reference_with_dropout(trainer):
    reference = trainer.accelerator.unwrap_model(trainer.ref_model)
    for module in reference.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    reference.train()
    reference.eval = lambda: reference
    return trainer


def all_labels_masked(trainer):
    """As a collator does that looks for a response template which the tokenizer spells otherwise."""
    collate = trainer.data_collator

    def masked(examples):
        batch = collate(examples)
        for name, nothing in (("labels", -100), ("completion_mask", 0)):
            if name in batch:
                batch[name] = torch.full_like(batch[name], nothing)
        return batch

    trainer.data_collator = masked
    return trainer


def never_eos(model):
    """A head that cannot say EOS (id 1): stock PPO takes no generation options."""
    model.lm_head.register_forward_hook(lambda _m, _a, out: out.index_fill(-1, torch.tensor([1]), -1e4))
    return model


def pad_is_eos(tokenizer):
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def pads_right(tokenizer):
    tokenizer.padding_side = "right"
    return tokenizer


def masks_pads(trainer):
    """Transformers' collator: with pad = EOS no label is EOS, and the model never learns to stop."""
    collate = DataCollatorForLanguageModeling(trainer.processing_class, mlm=False)
    trainer.data_collator = lambda rows: collate([{"input_ids": row["input_ids"]} for row in rows])
    return trainer


def half_precision(model):
    """fp16 weights, gradients and Adam moments: CPUs have no loss scaler, so all is cast, and Adam's eps becomes 0."""
    return model.half()


def identical_pairs(dataset):
    return dataset.map(lambda row: {"rejected": row["chosen"]})


def other_order(dataset):
    return dataset.select(random.Random(99).sample(range(len(dataset)), len(dataset)))
