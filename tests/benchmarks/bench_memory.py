"""Peak memory of the card with LoRA, 4 bits, an 8-bit optimizer, gradient checkpointing and bfloat16, one by one.

    python tests/benchmarks/bench_memory.py                                  0.6B and 4B, all options, on one GPU
    python tests/benchmarks/bench_memory.py --shapes tiny --options float32  runs anywhere, and says 0 without a GPU

`ReinforceLOOTrainer` with a KL to a reference (`beta: 0.05`) on a random policy of Qwen3's shape: 16 samples of 64 +
128 tokens, micro-batches of 4, two optimizer steps, the second with the optimizer's state in memory. Completions are
drawn at random instead of generated, which takes less than the update. What is counted is
`torch.cuda.max_memory_allocated` from the loaded policy to the end, weights included. A row is a process of its own.
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Option -> dtype of the weights, LoRA, bits, and options of the configuration
CHECKPOINTING = {"gradient_checkpointing": True}
OPTIONS = {
    "float32": ("float32", False, None, {}),
    "float32, checkpointing": ("float32", False, None, CHECKPOINTING),
    "bfloat16": ("bfloat16", False, None, {}),
    "bfloat16, checkpointing": ("bfloat16", False, None, CHECKPOINTING),
    "bfloat16, checkpointing, 8-bit AdamW": ("bfloat16", False, None, CHECKPOINTING | {"optim": "adamw_8bit"}),
    "float32, checkpointing, 8-bit AdamW": ("float32", False, None, CHECKPOINTING | {"optim": "adamw_8bit"}),
    "LoRA on bfloat16": ("bfloat16", True, None, {}),
    "LoRA on bfloat16, checkpointing": ("bfloat16", True, None, CHECKPOINTING),
    "QLoRA (nf4)": ("bfloat16", True, 4, {}),
    "QLoRA (nf4), checkpointing": ("bfloat16", True, 4, CHECKPOINTING),
    "QLoRA (nf4), checkpointing, 8-bit AdamW": ("bfloat16", True, 4, CHECKPOINTING | {"optim": "adamw_8bit"}),
}
SAMPLES, MICRO_BATCH, PROMPT, RESPONSE, STEPS = 16, 4, 64, 128, 2


def letter_reward(completion_ids, **kwargs):
    return [float(ids[0] % 7) for ids in completion_ids]


def drawn(prompt_ids, *_, **__):
    """Completions of full length, in place of the policy's."""
    import torch

    return torch.randint(97, 123, (len(prompt_ids), RESPONSE)).tolist(), None


def stored(shape: str) -> str:
    """A folder with the policy in bfloat16, in memory where there is such a disk: what bitsandbytes loads."""
    import torch
    from shapes import qwen3_config
    from transformers import Qwen3ForCausalLM

    from trl_ext import tiny

    root = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = tempfile.mkdtemp(prefix="bench_memory_", dir=root)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(qwen3_config(shape, tiny.byte_tokenizer())).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def build(shape: str, option: str, folder: str | None):
    import torch
    from datasets import Dataset
    from shapes import in_four_bits, lora_config, qwen3_config
    from transformers import Qwen3ForCausalLM

    from trl_ext import ReinforceLOOConfig, ReinforceLOOTrainer, drop_raw_logs, tiny

    dtype, lora, bits, more = OPTIONS[option]
    tokenizer, cuda = tiny.byte_tokenizer(), torch.cuda.is_available()
    torch.manual_seed(0)
    if bits == 4:
        model = in_four_bits(folder)
    else:
        with torch.device("cuda" if cuda else "cpu"):
            model = Qwen3ForCausalLM(qwen3_config(shape, tokenizer)).to(getattr(torch, dtype))
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    letters = torch.randint(97, 123, (SAMPLES * (STEPS + 1), PROMPT)).tolist()
    args = ReinforceLOOConfig(
        tempfile.mkdtemp(), per_device_train_batch_size=MICRO_BATCH, gradient_accumulation_steps=SAMPLES // MICRO_BATCH,
        num_generations=8, max_completion_length=RESPONSE, beta=0.05,
        max_steps=STEPS, learning_rate=1e-6, bf16=cuda, use_cpu=not cuda, report_to="none", save_strategy="no",
        disable_tqdm=True, logging_steps=1, **{"gradient_checkpointing": False, **more},
    )  # fmt: skip
    peft_config = lora_config() if lora else None
    trainer = ReinforceLOOTrainer(
        model, letter_reward, args, processing_class=tokenizer, peft_config=peft_config,
        train_dataset=Dataset.from_dict({"prompt": ["".join(map(chr, row)) for row in letters]}),
    )  # fmt: skip
    drop_raw_logs(trainer)
    trainer._generate_single_turn = drawn
    return trainer


def run(shape: str, option: str, folder: str | None) -> dict:
    import torch

    trainer = build(shape, option, folder)
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    cuda = torch.cuda.is_available()
    before = torch.cuda.memory_allocated() / 1e9 if cuda else 0.0
    start = time.perf_counter()
    trainer.train()
    seconds = (time.perf_counter() - start) / STEPS
    peak = torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0
    second_model = trainer.ref_model is not None
    return {"loaded": before, "peak": peak, "seconds": seconds, "trained": trained, "second_model": second_model}


def row(shape: str, option: str, folder: str | None) -> dict | str:
    """What `run` finds in a process of its own, or what it failed with."""
    words = [sys.executable, "-W", "ignore", __file__, "--worker", shape, option, *([folder] if folder else [])]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:200].replace("|", "/")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=("0.6B", "4B", "tiny"), default=["0.6B", "4B"])
    parser.add_argument("--options", nargs="+", choices=list(OPTIONS), default=list(OPTIONS))
    parser.add_argument("--json", type=Path, help="also write the rows there")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        shape, option, *folder = options.worker
        print(json.dumps({"folder": stored(shape)} if option == "store" else run(shape, option, (folder or [None])[0])))
        return
    rows = {}
    for shape in options.shapes:
        print(f"\n| {shape} | peak, GB | loaded, GB | trained | reference | s a step |")
        print("|---|---|---|---|---|---|", flush=True)
        stores = row(shape, "store", None) if any(OPTIONS[option][2] for option in options.options) else {}
        folder = stores.get("folder") if isinstance(stores, dict) else None
        for option in options.options:
            found = rows[f"{shape}: {option}"] = row(shape, option, folder)
            if isinstance(found, str):
                print(f"| {option} | {found} | | | | |", flush=True)
                continue
            reference = "a second model" if found["second_model"] else "the adapter off"
            memory = " | ".join(f"{found[name]:.1f}" for name in ("peak", "loaded"))
            trained = f"{found['trained'] / 1e6:,.0f} M"
            print(f"| {option} | {memory} | {trained} | {reference} | {found['seconds']:.1f} |", flush=True)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
