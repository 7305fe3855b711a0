"""Episodes whose policy is a script: what it says next is a function of all that was said so far."""

from datasets import Dataset
from trainer_builders import loo_args, policy
from transformers import PrinterCallback

from trl_ext.tiny import byte_tokenizer
from trl_ext.trainers import ReinforceLOOTrainer

CALL = '{"%s": {%s}}'


def call(name, arguments=""):
    return CALL % (name, arguments)


def ones(completions, **_):
    return [1.0] * len(completions)


def scripted(trainer, script):
    """`script(text)` is the policy's next turn after `text`, prompt and all; the end-of-text token is put behind it."""
    tokenizer = trainer._tokenizer

    def single_turn(prompt_ids, *_, **__):
        turns = [script(tokenizer.decode(ids)) for ids in prompt_ids]
        return [
            tokenizer(turn, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] for turn in turns
        ], None

    trainer._generate_single_turn = single_turn
    return trainer


def agent(tmp_path, script, rewards=ones, tokenizer=None, trainer=None, model=None, **options):
    """A trainer of two prompts, two episodes each; `trainer` holds arguments of the trainer."""
    rows = [[{"role": "user", "content": text}] for text in ("first", "second")] * 4
    options = {
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 200,
        "beta": 0.0,
    } | options
    built = ReinforceLOOTrainer(
        model or policy(), rewards, loo_args(tmp_path, **options), train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer or byte_tokenizer(chat=True), **(trainer or {}),
    )  # fmt: skip
    built.remove_callback(PrinterCallback)
    return scripted(built, script)


def spoken(output, row, tokenizer, policy):
    """What the policy said in a row, or the rest of the completion."""
    keep = output["completion_mask"][row].bool() & (output["tool_mask"][row].bool() == policy)
    return tokenizer.decode(output["completion_ids"][row][keep])


def logged(trainer):
    return {name: values[-1] for name, values in trainer._metrics["train"].items()}
