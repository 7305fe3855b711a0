"""Each fault made for real, in what transformers, peft and torch write: found, and healthy without it."""

import os
import shutil
import struct
import threading
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints.written import (
    TINY,
    WEIGHTS,
    content_of,
    edit_json,
    edit_weights,
    policy,
    rules_of,
    saved_adapter,
    saved_policy,
    saved_reward_model,
)
from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.health.judging import judge

EMBEDDING = "model.embed_tokens.weight"
PROJECTION = "model.layers.0.self_attn.q_proj.weight"


def cut(path, size):
    with open(path, "r+b") as file:
        file.truncate(size)


# --- files


def shard_gone(folder):
    saved_policy(folder, max_shard_size="1MB")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def shard_cut(folder):
    saved_policy(folder, max_shard_size="1MB")
    cut(sorted(folder.glob("model-*.safetensors"))[1], 5000)


def shard_empty(folder):
    saved_policy(folder, max_shard_size="1MB")
    cut(sorted(folder.glob("model-*.safetensors"))[0], 0)


def index_of_another_save(folder):
    """The tensors of two shards have changed places."""
    saved_policy(folder, max_shard_size="1MB")
    first, second, *_ = sorted(folder.glob("model-*.safetensors"))
    shutil.move(first, folder / "x")
    shutil.move(second, first)
    shutil.move(folder / "x", second)


def index_lacks_a_tensor(folder):
    saved_policy(folder, max_shard_size="1MB")
    index = judge(folder).checkpoint.documents["model.safetensors.index.json"]
    del index["weight_map"][PROJECTION]
    edit_json(folder, "model.safetensors.index.json", **index)


def index_says_another_size(folder):
    saved_policy(folder, max_shard_size="1MB")
    edit_json(folder, "model.safetensors.index.json", metadata={"total_size": 17})


def shard_of_an_earlier_save(folder):
    saved_policy(folder, max_shard_size="1MB")
    save_file({"old": torch.ones(3)}, folder / "model-00009-of-00009.safetensors")


def index_gone(folder):
    saved_policy(folder, max_shard_size="1MB")
    (folder / "model.safetensors.index.json").unlink()


def two_copies(folder):
    saved_policy(folder)
    save_file({PROJECTION: torch.randn(3, 3)}, folder / "other.safetensors")


def file_cut(folder):
    saved_policy(folder)
    cut(folder / WEIGHTS, 100_000)


def header_damaged(folder):
    saved_policy(folder)
    with open(folder / WEIGHTS, "r+b") as file:
        file.seek(12)
        file.write(b"\xff\xff\xff")


def file_of_zeros(folder):
    saved_policy(folder)
    cut(folder / WEIGHTS, 0)


def adapter_of_40_bytes(folder):
    saved_adapter(folder)
    save_file({}, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    assert (folder / "adapter_model.safetensors").stat().st_size == 40


def config_no_json(folder):
    saved_policy(folder)
    (folder / "config.json").write_text('{"vocab_size": ')


def killed_in_mid_save(folder):
    saved_policy(folder)
    (folder / "model.safetensors.tmp").write_bytes(b"1234")


# --- weights


def with_nan(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors[PROJECTION][2].fill_(float("nan")))


def with_infinity(folder):
    policy(torch.bfloat16).save_pretrained(folder)
    edit_weights(folder, lambda tensors: tensors[EMBEDDING][5, 5].fill_(float("-inf")))


def zero_matrix(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors[PROJECTION].zero_())


def constant_matrix(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors[PROJECTION].fill_(0.02))


def dead_rows(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors[PROJECTION][: len(tensors[PROJECTION]) * 2 // 3].zero_())


def exploded(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors[PROJECTION].mul_(1e7))


def one_layer_far_off(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors[PROJECTION].mul_(1000))


# --- adapters


def adapter_never_trained(folder):
    saved_adapter(folder, init_lora_weights=True)
    edit_json(folder, "trainer_state.json", global_step=100)


def adapter_never_trained_final(folder):
    """As `trainer.save_model` leaves it: without trainer_state.json."""
    saved_adapter(folder, init_lora_weights=True)
    torch.save({"of": "training"}, folder / "training_args.bin")


def adapter_partly_trained(folder):
    saved_adapter(folder)
    name = next(key for key in load_file(folder / "adapter_model.safetensors") if "lora_B" in key)
    edit_weights(folder, lambda tensors: tensors[name].zero_(), "adapter_model.safetensors")


def adapter_without_a(folder):
    saved_adapter(folder)
    edit_weights(
        folder, lambda tensors: tensors.pop(next(k for k in tensors if "lora_A" in k)), "adapter_model.safetensors"
    )


def adapter_of_another_rank(folder):
    saved_adapter(folder)
    edit_json(folder, "adapter_config.json", r=32)


def adapter_without_its_targets(folder):
    saved_adapter(folder)
    edit_json(folder, "adapter_config.json", target_modules=["q_proj", "v_proj", "down_proj"])


def adapter_of_other_targets(folder):
    saved_adapter(folder)
    edit_json(folder, "adapter_config.json", target_modules=["c_attn"])


def adapter_without_config(folder):
    saved_adapter(folder)
    (folder / "adapter_config.json").unlink()


def adapter_without_weights(folder):
    saved_adapter(folder)
    (folder / "adapter_model.safetensors").unlink()


def modules_not_saved(folder):
    saved_adapter(folder)
    edit_json(folder, "adapter_config.json", modules_to_save=["score"])


def modules_not_named(folder):
    saved_adapter(folder)
    edit_weights(
        folder, lambda t: t.update({"base_model.model.score.weight": torch.ones(1, 9)}), "adapter_model.safetensors"
    )


def base_gone(folder):
    saved_adapter(folder)
    edit_json(folder, "adapter_config.json", base_model_name_or_path="/nowhere/at/all")


def adapter_of_zeros(folder):
    saved_adapter(folder)

    def zero(tensors):
        for name, tensor in tensors.items():
            if "lora_A" in name:
                tensor.zero_()

    edit_weights(folder, zero, "adapter_model.safetensors")


def layer_of_an_adapter_gone(folder):
    saved_adapter(folder)
    edit_weights(
        folder, lambda t: [t.pop(name) for name in list(t) if ".layers.1." in name], "adapter_model.safetensors"
    )


# --- configuration


def tensor_gone(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))


def embedding_gone(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors.pop(EMBEDDING))


def vocabulary_resized(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", vocab_size=99)


def other_hidden_size(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", hidden_size=64)


def tokenizer_larger(folder):
    saved_policy(folder)

    def shorter(tensors):
        tensors[EMBEDDING] = tensors[EMBEDDING][:-300].contiguous()

    edit_weights(folder, shorter)
    edit_json(folder, "config.json", vocab_size=len(load_file(folder / WEIGHTS)[EMBEDDING]))


def pad_is_eos(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", pad_token_id=0, eos_token_id=0)
    edit_json(folder, "generation_config.json", pad_token_id=0, eos_token_id=0)


def token_outside(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", pad_token_id=10**6)


def ends_disagree(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", eos_token_id=3)
    edit_json(folder, "generation_config.json", eos_token_id=[4, 5])


def samples_oddly(folder):
    saved_policy(folder)
    edit_json(folder, "generation_config.json", do_sample=True, temperature=0.0, top_p=1.5)


def another_dtype(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", dtype="bfloat16")


def tie_broken(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", tie_word_embeddings=True)
    edit_weights(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDING] + 0.01}))


def head_gone(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", tie_word_embeddings=False)
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight", None))


def value_head_gone(folder):
    saved_reward_model(folder)
    edit_weights(folder, lambda tensors: tensors.pop("score.weight"))


def value_head_there(folder):
    saved_policy(folder)
    edit_weights(folder, lambda tensors: tensors.update({"v_head.summary.weight": torch.randn(1, 128)}))


def another_number_of_labels(folder):
    saved_reward_model(folder)
    edit_json(folder, "config.json", id2label={"0": "a", "1": "b"})


def layers_gone(folder):
    saved_policy(folder)
    edit_weights(folder, lambda t: [t.pop(name) for name in list(t) if ".layers.2." in name])


def layers_too_many(folder):
    saved_policy(folder)
    edit_json(folder, "config.json", num_hidden_layers=3)


def config_gone(folder):
    saved_policy(folder)
    (folder / "config.json").unlink()


# --- going on


def of_a_trainer(folder, *parts):
    saved_policy(folder)
    edit_json(folder, "trainer_state.json", global_step=7)
    for part in parts or ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"state": {0: {"exp_avg": torch.ones(3)}}}, folder / part)


def optimizer_gone(folder):
    of_a_trainer(folder, "scheduler.pt", "rng_state.pth")


def scheduler_empty(folder):
    of_a_trainer(folder)
    (folder / "scheduler.pt").write_bytes(b"")


def trainer_state_gone(folder):
    of_a_trainer(folder)
    (folder / "trainer_state.json").unlink()


def of_another_step(folder):
    of_a_trainer(folder)
    edit_json(folder, "trainer_state.json", global_step=9)


def weights_alone(folder):
    saved_policy(folder)
    edit_json(folder, "trainer_state.json", global_step=7)


def optimizer_without_a_step(folder):
    of_a_trainer(folder)
    torch.save({"state": {}, "param_groups": []}, folder / "optimizer.pt")


def optimizer_of_nan(folder):
    of_a_trainer(folder)
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.full((40, 40), float("nan")), "exp_avg_sq": torch.ones(40)}
    torch.save({"state": {0: moments}, "param_groups": []}, folder / "optimizer.pt")


FAULTS = {
    shard_gone: ("file_missing", "critical"), shard_cut: ("file_truncated", "critical"),
    shard_empty: ("file_empty", "critical"), index_of_another_save: ("index_disagrees", "critical"),
    index_lacks_a_tensor: ("index_disagrees", "error"), index_says_another_size: ("total_size", "warning"),
    shard_of_an_earlier_save: ("file_extra", "warning"), index_gone: ("file_missing", "critical"),
    two_copies: ("tensor_doubled", "error"), file_cut: ("file_truncated", "critical"),
    header_damaged: ("file_damaged", "critical"), file_of_zeros: ("file_empty", "critical"),
    adapter_of_40_bytes: ("adapter_empty", "critical"), config_no_json: ("file_unreadable", "error"),
    killed_in_mid_save: ("save_unfinished", "warning"),
    with_nan: ("nonfinite_weights", "critical"), with_infinity: ("nonfinite_weights", "critical"),
    zero_matrix: ("zero_weights", "error"), constant_matrix: ("constant_weights", "error"),
    dead_rows: ("dead_units", "warning"), exploded: ("exploding_weights", "error"),
    one_layer_far_off: ("weight_outlier", "warning"),
    adapter_never_trained: ("adapter_untrained", "critical"),
    adapter_never_trained_final: ("adapter_untrained", "critical"),
    adapter_partly_trained: ("adapter_partly_untrained", "warning"),
    adapter_without_a: ("adapter_incomplete", "error"), adapter_of_another_rank: ("adapter_rank", "error"),
    adapter_without_its_targets: ("adapter_targets", "info"), adapter_of_other_targets: ("adapter_targets", "error"),
    adapter_without_config: ("adapter_config_missing", "error"), adapter_without_weights: ("file_missing", "critical"),
    modules_not_saved: ("modules_to_save", "error"), modules_not_named: ("modules_to_save", "info"),
    base_gone: ("base_model_missing", "error"),
    adapter_of_zeros: ("adapter_dead", "error"), layer_of_an_adapter_gone: ("tensors_lost", "warning"),
    tensor_gone: ("tensors_lost", "error"), embedding_gone: ("embedding_missing", "critical"),
    scheduler_empty: ("file_empty", "error"),
    vocabulary_resized: ("vocab_size", "error"), other_hidden_size: ("hidden_size", "error"),
    tokenizer_larger: ("tokenizer_larger", "error"), pad_is_eos: ("pad_is_eos", "info"),
    token_outside: ("token_id", "warning"), ends_disagree: ("eos_disagrees", "warning"),
    samples_oddly: ("generation_config", "warning"), another_dtype: ("dtype_disagrees", "warning"),
    tie_broken: ("tie_broken", "error"), head_gone: ("head_missing", "critical"),
    value_head_gone: ("value_head_missing", "critical"), value_head_there: ("value_head_present", "info"),
    another_number_of_labels: ("num_labels", "error"), layers_gone: ("layers_missing", "critical"),
    layers_too_many: ("layers_extra", "error"), config_gone: ("config_missing", "warning"),
    optimizer_gone: ("resume_incomplete", "warning"), trainer_state_gone: ("trainer_state_missing", "error"),
    of_another_step: ("step_disagrees", "warning"), weights_alone: ("resume_weights_only", "info"),
    optimizer_without_a_step: ("optimizer_empty", "warning"), optimizer_of_nan: ("optimizer_nonfinite", "error"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_and_nothing_is_written(fault, tmp_path):
    folder = tmp_path / "checkpoint-7"
    fault(folder)
    before = content_of(folder)
    rule, severity = FAULTS[fault]
    assert rules_of(folder).get(rule) == severity
    assert content_of(folder) == before


@pytest.mark.parametrize("fault", [f for f, (_, severity) in FAULTS.items() if severity in ("error", "critical")],
                         ids=lambda fault: fault.__name__)  # fmt: skip
def test_a_serious_fault_brings_no_other_serious_one_but_its_own_kind(fault, tmp_path):
    """One cause, one alarm: apart from what the same cause must break as well."""
    folder = tmp_path / "saved"
    fault(folder)
    also = {"shard_gone": {"layers_missing"}, "shard_cut": {"layers_missing"}, "shard_empty": {"layers_missing"},
            "index_gone": set(), "trainer_state_gone": set(), "exploded": set()}  # fmt: skip
    serious = {rule for rule, severity in rules_of(folder).items() if severity in ("error", "critical")}
    expected = {FAULTS[fault][0]} if fault is not trainer_state_gone else set()
    assert serious <= expected | also.get(fault.__name__, set())


def test_the_score_falls_with_the_severity(tmp_path):
    saved_policy(tmp_path / "a")
    assert (judge(tmp_path / "a").score, judge(tmp_path / "a").status) == (1.0, "healthy")
    edit_json(tmp_path / "a", "generation_config.json", do_sample=True, temperature=0.0)
    assert (judge(tmp_path / "a").score, judge(tmp_path / "a").status) == (0.9, "suspicious")
    edit_weights(tmp_path / "a", lambda tensors: tensors[PROJECTION].zero_())
    assert (judge(tmp_path / "a").score, judge(tmp_path / "a").status) == (0.4, "damaged")
    edit_weights(tmp_path / "a", lambda tensors: tensors[PROJECTION].fill_(float("nan")))
    assert (judge(tmp_path / "a").score, judge(tmp_path / "a").status) == (0.0, "unusable")


def test_a_broken_tokenizer_is_told_once(tmp_path):
    saved_policy(tmp_path)
    cut(tmp_path / "tokenizer.json", 100)
    assert [finding.rule for finding in judge(tmp_path).findings] == ["file_unreadable"]


def test_a_tokenizer_without_its_vocabulary_is_told(tmp_path):
    saved_policy(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert rules_of(tmp_path) == {"tokenizer_missing": "warning"}
    edit_json(tmp_path, "tokenizer_config.json", tokenizer_class="ByT5Tokenizer")
    assert rules_of(tmp_path) == {}


def test_zeros_in_all_layers_alike_may_be_by_design(tmp_path):
    """Gates and codebooks of some architectures begin so: a warning, and an error where they are most weights."""
    saved_policy(tmp_path)
    edit_weights(tmp_path, lambda tensors: [t.zero_() for name, t in tensors.items() if "q_proj.weight" in name])
    assert rules_of(tmp_path) == {"zero_weights": "warning"}
    edit_weights(tmp_path, lambda tensors: [tensor.zero_() for tensor in tensors.values()])
    assert rules_of(tmp_path) == {"zero_weights": "error"}


# --- beside a reference


def test_weights_that_equal_the_base_did_not_move(tmp_path):
    saved_policy(tmp_path / "own")
    assert rules_of(tmp_path / "own", saved_policy(tmp_path / "base"))["nothing_moved"] == "warning"


@pytest.mark.parametrize(("times", "severity"), [(4, "warning"), (40, "error")])
def test_norms_that_exploded_against_the_base(times, severity, tmp_path):
    saved_policy(tmp_path / "base")
    saved_policy(tmp_path / "own")
    edit_weights(tmp_path / "own", lambda tensors: tensors[PROJECTION].mul_(times))
    assert rules_of(tmp_path / "own", tmp_path / "base")["norm_exploded"] == severity


def test_another_model_is_far_from_the_reference(tmp_path):
    saved_policy(tmp_path / "own")
    saved_policy(tmp_path / "base")
    edit_weights(tmp_path / "own", lambda tensors: [t.neg_() for t in tensors.values()])
    assert rules_of(tmp_path / "own", tmp_path / "base")["drift_far"] == "warning"


def test_tensors_that_only_one_of_the_two_has_are_named(tmp_path):
    saved_policy(tmp_path / "own")
    saved_policy(tmp_path / "base")
    edit_weights(tmp_path / "own", lambda t: t.update({PROJECTION: t[PROJECTION][:-1].clone(), "new": torch.ones(3)}))
    edit_weights(tmp_path / "base", lambda tensors: tensors.update(old=torch.ones(3)))
    found = rules_of(tmp_path / "own", tmp_path / "base")
    assert {"tensor_missing", "tensor_extra", "shape_differs"} <= found.keys()


def test_a_reference_of_other_names_is_told(tmp_path):
    saved_policy(tmp_path / "own")
    save_file({"x": torch.ones(3)}, tmp_path / "x.safetensors")
    assert rules_of(tmp_path / "own", tmp_path / "x.safetensors")["reference_unrelated"] == "warning"


@pytest.mark.parametrize(("alpha", "severity"), [(8, None), (1000, "warning"), (10_000, "error")])
def test_an_adapter_beside_its_base(alpha, severity, tmp_path):
    """What it adds is about as large as the weights at alpha 500."""
    torch.manual_seed(0)
    saved_adapter(tmp_path, r=64, lora_alpha=alpha)
    edit_weights(tmp_path, lambda t: [x.mul_(0.15) for n, x in t.items() if "lora_B" in n], "adapter_model.safetensors")
    assert rules_of(tmp_path, TINY).get("adapter_too_strong") == severity


def test_an_adapter_of_another_base_does_not_fit(tmp_path):
    saved_adapter(tmp_path / "adapter")
    saved_policy(tmp_path / "base")

    def wider(tensors):
        for name in list(tensors):
            if name.endswith("q_proj.weight"):
                tensors[name] = torch.randn(len(tensors[name]), 77)

    edit_weights(tmp_path / "base", wider)
    assert rules_of(tmp_path / "adapter", tmp_path / "base")["adapter_shape"] == "error"


def test_an_adapter_that_uses_one_direction(tmp_path):
    def flat(tensors):
        for name, tensor in tensors.items():
            if "lora_A" in name:
                tensor.copy_(tensor[:1].expand_as(tensor).clone())

    saved_adapter(tmp_path)
    edit_weights(tmp_path, flat, "adapter_model.safetensors")
    assert rules_of(tmp_path)["adapter_rank_collapse"] == "info"


# --- what happens meanwhile


def test_a_checkpoint_that_is_deleted_while_it_is_read_ends_as_a_finding(tmp_path):
    folder = tmp_path / "checkpoint-3"
    outcomes = set()
    for i in range(12):
        saved_policy(folder, max_shard_size="200KB")
        deleting = threading.Timer(0.0015 * i, shutil.rmtree, (folder,), {"ignore_errors": True})
        deleting.start()
        try:
            outcomes.add(judge(folder).status)
        except UnreadableError as error:
            assert "\n" not in str(error)
            outcomes.add("gone")
        deleting.join()
        shutil.rmtree(folder, ignore_errors=True)
    assert outcomes & {"unusable", "gone"}


def test_a_save_in_progress_ends_as_a_finding(tmp_path):
    """The file grows while it is read."""
    whole = saved_policy(tmp_path / "whole") / WEIGHTS
    folder = saved_policy(tmp_path / "saved")
    content = whole.read_bytes()
    (folder / WEIGHTS).write_bytes(b"")

    def write():
        with open(folder / WEIGHTS, "wb", buffering=0) as file:
            for at in range(0, len(content), 1 << 18):
                file.write(content[at : at + (1 << 18)])
                time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while writer.is_alive():
        seen |= rules_of(folder).keys()
    writer.join()
    assert seen & {"file_truncated", "file_empty"}
    assert not judge(folder).findings


def test_a_cut_after_the_header_was_read_is_told(tmp_path, monkeypatch):
    folder = saved_policy(tmp_path / "saved")
    from trl_ext.checkpoints.health import judging

    measure = judging.measure

    def cut_first(checkpoint, *others):
        cut(folder / WEIGHTS, 200_000)
        return measure(checkpoint, *others)

    monkeypatch.setattr(judging, "measure", cut_first)
    found = judge(folder)
    assert [f.rule for f in found.findings if f.severity == "critical"].count("file_truncated") >= 1
    assert found.status == "unusable"


def test_a_rule_that_fails_is_logged_once_and_the_others_go_on(tmp_path, monkeypatch, caplog):
    from trl_ext.checkpoints.health import judging

    def broken(case):
        raise ZeroDivisionError
        yield

    monkeypatch.setattr(judging, "RULES", (broken, *judging.RULES))
    monkeypatch.setattr(judging, "_failed", set())
    with_nan(tmp_path / "saved")
    for _ in range(2):
        assert "nonfinite_weights" in rules_of(tmp_path / "saved")
    assert caplog.text.count("the others go on") == 1


@pytest.mark.parametrize("document", ["[]", "3", '"text"', "null", '{"vocab_size": "many", "architectures": 3, '
                         '"text_config": [1], "num_hidden_layers": true, "tie_word_embeddings": "yes", "id2label": []}',
                         '{"architectures": [[]], "hidden_size": -1, "dtype": ["bf16"], "pad_token_id": [[1]]}',
                         '{"dtype": "load", "torch_dtype": "nn"}'])  # fmt: skip
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json",
                                  "trainer_state.json", "model.safetensors.index.json"])  # fmt: skip
def test_documents_of_any_content_are_no_fault_of_a_rule(file, document, tmp_path, caplog):
    saved_policy(tmp_path / "saved")
    (tmp_path / "saved" / file).write_text(document)
    judge(tmp_path / "saved")
    assert "failed" not in caplog.text


@pytest.mark.parametrize("document", ["[]", '{"r": "8", "target_modules": {"a": 1}, "modules_to_save": "score"}',
                         '{"r": null, "lora_alpha": [], "rank_pattern": [], "base_model_name_or_path": 3}',
                         '{"lora_alpha": 1' + '0' * 400 + ', "target_modules": true}',
                         '{"base_model_name_or_path": "~nobody/x"}',
                         '{"r": 1' + '0' * 400 + ', "rank_pattern": {"((": 1, "(a+)+": 2}}',
                         '{"lora_alpha": 1e400, "alpha_pattern": {"q_proj": "x"}, "target_modules": [3]}'])  # fmt: skip
def test_an_adapter_config_of_any_content_is_no_fault_of_a_rule(document, tmp_path, caplog):
    saved_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(document)
    judge(tmp_path, TINY)
    assert "failed" not in caplog.text


def test_a_folder_that_cannot_be_entered_is_one_line(tmp_path):
    with pytest.raises(UnreadableError, match="does not exist"):
        judge(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == []


def test_a_header_only_file_names_its_bytes(tmp_path):
    (tmp_path / WEIGHTS).write_bytes(struct.pack("<Q", 2) + b"{}")
    (finding,) = judge(tmp_path).findings
    assert (finding.rule, finding.severity) == ("weights_empty", "critical")
    assert "10 bytes" in finding.message
