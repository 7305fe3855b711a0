"""A sequence classifier as a reward, against Transformers alone, asked one text at a time."""

import json
import math
import os
import pickle
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from trl_ext import tiny
from trl_ext.errors import UserError
from trl_ext.rewards import load_reward_funcs
from trl_ext.rewards.reward_model import RewardModelReward

# Lengths from 1 to 61 bytes, out of order.
TEXTS = ["word " * n + "." for n in (3, 0, 12, 1, 7, 2, 12, 5)]
PROMPTS = [f"{i} " for i in range(len(TEXTS))]
CHAT = [{"role": "user", "content": "hi"}]


def scorer(seed: int = 1, **config):
    """Qwen2 with a head large enough for values apart from each other."""
    model = tiny.random_scorer(seed, **config)
    with torch.no_grad():
        model.score.weight.mul_(50)
    return model.eval()


def save(folder, model=None, tokenizer=None):
    (model or scorer()).save_pretrained(folder)
    (tokenizer or tiny.byte_tokenizer(chat=True)).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "model")


@torch.no_grad()
def alone(model, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


def expected(texts, model=None, tokenizer=None) -> list[float]:
    tokenizer, model = tokenizer or tiny.byte_tokenizer(), model or scorer()
    return [alone(model, [*tokenizer(text).input_ids, tokenizer.eos_token_id]).item() for text in texts]


def both(prompts=PROMPTS, completions=TEXTS) -> list[str]:
    return [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]


def close(values: list[float]):
    return pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize(
    "batching", [{"batch_size": 1}, {"batch_size": 3}, {"batch_size": 64}, {"max_tokens_per_batch": 70}]
)
def test_values_are_those_of_one_text_at_a_time_in_the_order_of_the_completions(folder, batching):
    rewards = RewardModelReward(folder, **batching)(prompts=PROMPTS, completions=TEXTS)
    assert rewards == close(expected(both()))
    assert max(rewards) - min(rewards) > 0.1  # 1e-5 can tell them apart


def test_a_single_text_and_no_text(folder):
    reward = RewardModelReward(folder)
    assert reward(prompts=[PROMPTS[2]], completions=[TEXTS[2]]) == close(expected(both())[2:3])
    assert reward(prompts=[], completions=[]) == []


def shapes_asked(reward: RewardModelReward) -> list[tuple[int, int]]:
    shapes = []
    reward._classifier.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    reward(prompts=[""] * 6, completions=["a" * n for n in (1, 20, 2, 19, 3, 40)])
    return shapes


def test_texts_of_like_length_share_a_batch_and_of_short_ones_more(folder):
    # With the end token the lengths are 2, 21, 3, 20, 4, 41; none is padded to more than twice its length
    assert shapes_asked(RewardModelReward(folder, batch_size=2)) == [(2, 41), (1, 20), (3, 4)]


def test_a_batch_holds_no_more_tokens_than_allowed_but_one_text_at_least(folder):
    assert shapes_asked(RewardModelReward(folder, max_tokens_per_batch=40)) == [(1, 41), (1, 21), (1, 20), (3, 4)]
    assert shapes_asked(RewardModelReward(folder, max_tokens_per_batch=9)) == [
        (1, 41),
        (1, 21),
        (1, 20),
        (2, 4),
        (1, 2),
    ]
    assert shapes_asked(RewardModelReward(folder, batch_size=1)) == [(1, 41), (1, 21), (1, 20), (3, 4)]


def test_messages_go_through_the_chat_template(folder):
    completions = [[{"role": "assistant", "content": text}] for text in TEXTS]
    template = tiny.byte_tokenizer(chat=True)
    ids = [template.apply_chat_template(CHAT + each, tokenize=True, return_dict=False) for each in completions]
    assert ids[1][-1] == template.eos_token_id  # the template's own, and no second one
    rewards = RewardModelReward(folder, batch_size=3)(prompts=[CHAT] * len(TEXTS), completions=completions)
    assert rewards == close([alone(scorer(), row).item() for row in ids])


def test_plain_text_becomes_a_chat_where_asked(folder):
    reward = RewardModelReward(folder, plain_as_chat=True)
    texts = ["user: hi\nassistant: yes", "assistant: yes"]
    assert reward(prompts=["hi", ""], completions=["yes", "yes"]) == close(expected(texts))
    assert reward(prompts=["hi"], completions=["yes"]) != close(expected(["hiyes"]))


def test_without_the_template_messages_are_their_texts(folder):
    reward = RewardModelReward(folder, chat_template=False)
    said = [{"role": "assistant", "content": "yes"}]
    assert reward(prompts=[CHAT], completions=[said]) == close(expected(["hi\nyes"]))


def test_messages_and_text_may_be_mixed(folder):
    said = [{"role": "assistant", "content": "yes"}]
    rewards = RewardModelReward(folder)(prompts=[CHAT, "hi", "hi"], completions=[said, "yes", said])
    chat = "user: hi\nassistant: yes"
    assert rewards == close(expected([chat, "hiyes", chat]))


def test_messages_for_a_tokenizer_without_a_template_are_refused(tmp_path):
    reward = RewardModelReward(save(tmp_path, tokenizer=tiny.byte_tokenizer()))
    with pytest.raises(UserError, match="has no chat template for messages: write chat_template: false"):
        reward(prompts=[CHAT], completions=[[{"role": "assistant", "content": "yes"}]])


def test_without_a_pad_token_the_last_token_is_still_found(tmp_path):
    model, tokenizer = scorer(pad_token_id=None), tiny.byte_tokenizer()
    tokenizer.pad_token = None
    rewards = RewardModelReward(save(tmp_path, model, tokenizer))(prompts=PROMPTS, completions=TEXTS)
    # The end token pads, as in RewardTrainer, which therefore reads the token before it.
    assert rewards == close([alone(model, tokenizer(text).input_ids).item() for text in both()])


@pytest.mark.parametrize("pad_of_tokenizer", ["<eos>", "a", "<new>"])
def test_the_model_finds_its_own_pad_token_whatever_the_tokenizer_pads_with(tmp_path, pad_of_tokenizer):
    tokenizer = tiny.byte_tokenizer()
    tokenizer.pad_token = pad_of_tokenizer
    assert RewardModelReward(save(tmp_path, tokenizer=tokenizer))(prompts=PROMPTS, completions=TEXTS) == close(
        expected(both())
    )


def test_a_pad_token_beyond_the_embeddings_is_not_used(tmp_path):
    tokenizer = tiny.byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<new>"})
    model = scorer(pad_token_id=None)
    reward = RewardModelReward(save(tmp_path, model, tokenizer))
    assert reward._classifier.pad_id == tokenizer.eos_token_id
    assert all(map(math.isfinite, reward(prompts=PROMPTS, completions=TEXTS)))


def test_a_tokenizer_that_pads_on_the_left_changes_nothing(tmp_path):
    tokenizer = tiny.byte_tokenizer()
    assert tokenizer.padding_side == "left"
    tokenizer.padding_side = "right"
    right = RewardModelReward(save(tmp_path, tokenizer=tokenizer))(prompts=PROMPTS, completions=TEXTS)
    assert right == close(expected(both()))


def test_dropout_is_off_and_no_gradient_is_kept(tmp_path):
    reward = RewardModelReward(save(tmp_path, scorer(attention_dropout=0.5)))
    assert reward(prompts=PROMPTS, completions=TEXTS) == close(expected(both()))
    assert not any(parameter.requires_grad for parameter in reward._classifier.model.parameters())


def test_what_is_too_long_loses_its_beginning_and_keeps_its_end(folder):
    long, short = "x" * 30 + "the end", "the end"
    reward = RewardModelReward(folder, max_length=8)
    assert reward(prompts=["", ""], completions=[long, short]) == close(expected([short, short]))
    said = [{"role": "assistant", "content": long}]
    model, tokenizer = scorer(), tiny.byte_tokenizer()
    last = [*tokenizer("he end").input_ids, tokenizer.eos_token_id]
    assert RewardModelReward(folder, max_length=7)(prompts=[CHAT], completions=[said]) == close(
        [alone(model, last).item()]
    )


def test_by_default_a_text_is_as_long_as_the_model_can_take(tmp_path):
    reward = RewardModelReward(save(tmp_path, scorer(max_position_embeddings=16)))
    assert reward._classifier.max_length == 16
    assert reward(prompts=[""], completions=["x" * 99 + "fifteen letters"]) == close(expected(["fifteen letters"]))


def test_a_text_without_a_token_has_no_reward(tmp_path):
    tokenizer = tiny.byte_tokenizer()
    tokenizer.eos_token = None
    reward = RewardModelReward(save(tmp_path, tokenizer=tokenizer))
    first, second = reward(prompts=["", ""], completions=["", "word"])
    assert first is None
    assert second == pytest.approx(alone(scorer(), tokenizer("word").input_ids).item(), abs=1e-5)


def test_half_precision_is_close(folder):
    reward = RewardModelReward(folder, dtype="bfloat16")
    assert reward._classifier.model.dtype == torch.bfloat16
    assert reward(prompts=PROMPTS, completions=TEXTS) == pytest.approx(expected(both()), abs=0.05)


def three_labels(**config):
    return scorer(num_labels=3, id2label={0: "bad", 1: "so-so", 2: "good"}, **config)


@pytest.mark.parametrize("label", ["good", 2])
def test_of_several_labels_the_reward_is_the_log_odds_of_one(tmp_path, label):
    model, tokenizer = three_labels(), tiny.byte_tokenizer()
    rewards = RewardModelReward(save(tmp_path, model), label=label)(prompts=PROMPTS, completions=TEXTS)
    p = [alone(model, [*tokenizer(text).input_ids, 257]).double().softmax(0)[2].item() for text in both()]
    assert rewards == close([math.log(each / (1 - each)) for each in p])


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_of_independent_labels_the_reward_is_the_output_of_one(tmp_path, problem_type):
    model, tokenizer = three_labels(problem_type=problem_type), tiny.byte_tokenizer()
    rewards = RewardModelReward(save(tmp_path, model), label="so-so")(prompts=PROMPTS, completions=TEXTS)
    assert rewards == close([alone(model, [*tokenizer(text).input_ids, 257])[1].item() for text in both()])


def test_an_encoder_gets_its_own_special_tokens_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    vocab = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", ".", *"01234567"])}
    tokenizer = BertTokenizer(vocab=vocab, eos_token="[MASK]")  # an end token that it does not write itself
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(vocab), **shape, num_labels=1)
    model = BertForSequenceClassification(config).eval()
    rewards = RewardModelReward(save(tmp_path, model, tokenizer), batch_size=3)(prompts=PROMPTS, completions=TEXTS)
    ids = [[2, *(vocab[word] for word in text.replace(".", " .").split()), 3] for text in both()]
    assert rewards == close([alone(model, row).item() for row in ids])


# Calibration -------------------------------------------------------------------------------------


def calibration_by_hand(texts: list[str]) -> tuple[float, float]:
    raw = expected(texts)
    mean = sum(raw) / len(raw)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in raw) / len(raw))


def test_rewards_have_mean_0_and_deviation_1_on_the_reference(folder):
    reward = RewardModelReward(folder, reference=TEXTS)
    values = reward(prompts=[""] * len(TEXTS), completions=TEXTS)
    assert sum(values) / len(values) == pytest.approx(0, abs=1e-6)
    assert sum(value**2 for value in values) / len(values) == pytest.approx(1, abs=1e-5)


def test_other_texts_are_measured_on_the_same_scale(folder):
    mean, std = calibration_by_hand(TEXTS[:4])
    rewards = RewardModelReward(folder, reference=TEXTS[:4])(prompts=[""], completions=["other"])
    assert rewards == pytest.approx([(expected(["other"])[0] - mean) / std], abs=1e-4)


def test_a_reference_may_be_a_file(folder, tmp_path):
    lines = ["one.", {"text": "two two."}, {"prompt": "thr", "completion": "ee three."}, {"completion": "four"}]
    (tmp_path / "reference.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (tmp_path / "reference.txt").write_text("one.\n\ntwo two.\nthree three.\nfour\n")
    mean, std = calibration_by_hand(["one.", "two two.", "three three.", "four"])
    for file in ("reference.jsonl", "reference.txt"):
        reward = RewardModelReward(folder, reference=str(tmp_path / file))
        assert (reward.mean, reward.std) == (pytest.approx(mean, abs=1e-5), pytest.approx(std, abs=1e-5))


def test_a_reference_may_be_messages(folder):
    entries = [{"prompt": CHAT, "completion": [{"role": "assistant", "content": text}]} for text in ("a", "bb")]
    mean, _ = calibration_by_hand(["user: hi\nassistant: a", "user: hi\nassistant: bb"])
    assert RewardModelReward(folder, reference=entries).mean == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("reference", [["one"], ["one", "one"]])
def test_a_reference_that_does_not_vary_is_refused(folder, reference):
    with pytest.raises(UserError, match=r"standard deviation is 0\.0; give two texts or more"):
        RewardModelReward(folder, reference=reference, batch_size=1)


# Elsewhere ---------------------------------------------------------------------------------------


def test_it_pickles_by_name_and_works_in_another_process_and_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reward = RewardModelReward("model", reference=TEXTS)  # relative to this folder
    data = pickle.dumps(reward)
    assert len(data) < 2000  # without the model
    values = reward(prompts=PROMPTS, completions=TEXTS)
    (tmp_path / "reward.pickle").write_bytes(data)
    code = (
        "import json, pickle, sys; sys.path.insert(0, sys.argv[1]); "
        "reward = pickle.load(open(sys.argv[2], 'rb')); prompts, texts = json.loads(sys.argv[3]); "
        "print(json.dumps(reward(prompts=prompts, completions=texts)))"
    )
    root = str(tiny.PATH.parents[1])
    command = [sys.executable, "-c", code, root, str(tmp_path / "reward.pickle"), json.dumps([PROMPTS, TEXTS])]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(values, abs=1e-5)


def test_naming_it_imports_no_torch():
    code = "import sys, trl_ext.rewards.reward_model; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    env = os.environ | {"PYTHONPATH": str(tiny.PATH.parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=env, timeout=120).returncode == 0


def test_a_configuration_names_it(folder):
    (reward,), weights = load_reward_funcs([{"name": "reward_model", "kwargs": {"model_name_or_path": folder}}])
    assert (reward.__name__, weights) == ("reward_model", [1.0])
    assert reward(prompts=PROMPTS, completions=TEXTS) == close(expected(both()))
    with pytest.raises(UserError, match="Reward 'reward_model' needs model_name_or_path"):
        load_reward_funcs("reward_model")


def test_it_is_a_function_to_trl_and_not_a_model(folder):
    assert not isinstance(RewardModelReward(folder), nn.Module)
    assert RewardModelReward(folder).__name__ == "reward_model"


# Adapters ----------------------------------------------------------------------------------------


def adapter_of(tmp_path, base=None, **options):
    """A LoRA adapter with values of its own and the model it makes, saved as TRL saves it."""
    policy = tmp_path / "policy"
    if base is None:
        tiny.random_policy().save_pretrained(policy)
        tiny.byte_tokenizer().save_pretrained(policy)
        base = scorer()
        base.model.load_state_dict(tiny.random_policy().model.state_dict())
    base.name_or_path = str(policy)
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj", "v_proj"], **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    model.save_pretrained(tmp_path / "adapter")
    return str(tmp_path / "adapter"), model.eval()


def test_an_adapter_is_loaded_with_its_base_and_its_head(tmp_path):
    adapter, model = adapter_of(tmp_path, task_type="SEQ_CLS", modules_to_save=["score"])
    tokenizer = tiny.byte_tokenizer()
    values = [alone(model, [*tokenizer(text).input_ids, 257]).item() for text in both()]
    assert values != close(expected(both()))  # the adapter does something
    assert RewardModelReward(adapter)(prompts=PROMPTS, completions=TEXTS) == close(values)


def test_an_adapter_without_a_head_is_refused(tmp_path):
    adapter, _ = adapter_of(tmp_path)
    with pytest.raises(UserError, match=r"no trained reward model: its checkpoint has no score\.weight"):
        RewardModelReward(adapter)


def test_an_adapter_on_a_trained_reward_model_needs_no_head_of_its_own(tmp_path):
    save(tmp_path / "policy", tokenizer=tiny.byte_tokenizer())
    adapter, model = adapter_of(tmp_path, base=scorer())
    tokenizer = tiny.byte_tokenizer()
    values = [alone(model, [*tokenizer(text).input_ids, 257]).item() for text in both()]
    assert RewardModelReward(adapter)(prompts=PROMPTS, completions=TEXTS) == close(values)


def test_an_adapter_for_another_task_is_refused(tmp_path):
    adapter, _ = adapter_of(tmp_path, task_type="FEATURE_EXTRACTION")
    with pytest.raises(UserError, match="is no reward model: it was trained for the task FEATURE_EXTRACTION"):
        RewardModelReward(adapter)


def test_an_adapter_says_which_base_is_missing_and_pickled_weights_are_refused(tmp_path):
    adapter, _ = adapter_of(tmp_path, task_type="SEQ_CLS", modules_to_save=["score"])
    (tmp_path / "policy").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"was trained on '.*policy': no reward model"):
        RewardModelReward(adapter)
    (tmp_path / "adapter" / "adapter_model.safetensors").rename(tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(UserError, match=r"no adapter_model\.safetensors, and pickled weights are refused"):
        RewardModelReward(adapter)


# Mistakes ----------------------------------------------------------------------------------------


class Payload:
    """What a malicious checkpoint holds."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickled_weights_are_refused_unread(folder, tmp_path):
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(str(tmp_path / "harm"))))
    with pytest.raises(UserError, match="has no safetensors weights, and pickled ones are refused"):
        RewardModelReward(folder)
    assert not (tmp_path / "harm").exists()


def test_a_checkpoint_without_a_head_is_refused(tmp_path):
    tiny.random_policy().save_pretrained(tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"its checkpoint has no score\.weight, so scores would be random"):
        RewardModelReward(str(tmp_path))


def test_several_labels_are_asked_about_by_name(tmp_path):
    name = save(tmp_path, three_labels())
    with pytest.raises(UserError, match=r"has 3 labels, which one\? Write label: one of bad \(0\), so-so \(1\), good"):
        RewardModelReward(name)
    with pytest.raises(UserError, match=r"has no label 'great': write one of bad \(0\)"):
        RewardModelReward(name, label="great")
    with pytest.raises(UserError, match="has no label 3: write one of"):
        RewardModelReward(name, label=3)


def test_a_broken_checkpoint_is_one_line(folder, tmp_path):
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot load the reward model") as caught:
        RewardModelReward(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"model_name_or_path": "nobody/nothing"}, "no reward model 'nobody/nothing': neither a local folder nor"),
        ({"model_name_or_path": "/"}, "folder '/' holds no model: no config.json in it"),
        ({"model_name_or_path": None}, "needs a folder or hub id for model_name_or_path, not None"),
        ({"batch_size": 0}, "needs a whole number of at least 1 for batch_size, not 0"),
        ({"batch_size": True}, "for batch_size, not True"),
        ({"max_tokens_per_batch": 1.5}, "for max_tokens_per_batch, not 1.5"),
        ({"max_length": 1}, "at least 2 for max_length, not 1"),
        ({"dtype": "int8"}, "auto, float32, bfloat16, float16, not 'int8'"),
        ({"label": True}, "needs a name or index for label, not True"),
        ({"device": "abacus"}, "abacus"),
        ({"chat_template": "no"}, "needs true or false for chat_template, not 'no'"),
        ({"plain_as_chat": True, "chat_template": False}, "drop plain_as_chat"),
        ({"reference": "none.jsonl"}, "cannot read the reference 'none.jsonl': No such file"),
        ({"reference": []}, "reference is empty"),
        ({"reference": 3}, "reference needs a list of texts or a file of them, not 3"),
        ({"reference": ["a", 3]}, "entry 2 of reference is no text"),
        ({"reference": [{"answer": "a"}]}, "entry 1 of reference is no text and has no 'completion' or 'text'"),
    ],
)
def test_a_bad_option_is_one_line(folder, kwargs, said):
    with pytest.raises(UserError) as caught:
        RewardModelReward(**{"model_name_or_path": folder, **kwargs})
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_line_of_the_reference_that_is_no_json_is_named(folder, tmp_path):
    (tmp_path / "a.jsonl").write_text('"fine"\n\n{nonsense\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 3, is no JSON"):
        RewardModelReward(folder, reference=str(tmp_path / "a.jsonl"))
