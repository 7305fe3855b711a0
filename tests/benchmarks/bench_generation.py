"""Steps of TRL's trainers and ours on one GPU, stock and with fast generation, side by side in one call.

    python tests/benchmarks/bench_generation.py --stock-python .venv-trl112/bin/python
    python tests/benchmarks/bench_generation.py --attention          the attention of one token alone

A random policy of Qwen3's 0.6B shape, prompts of 64 tokens, completions of 256, micro-batches of 8, gradient
checkpointing as TRL has it (on). Every run is a process of its own. Medians of the steps after the first two, which
compile; seconds by a clock that waits for the card. Prints a table in Markdown.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from shapes import SHAPES, in_four_bits, lora_config, qwen3_config
from step_profile import lines, profiler, range_of

CASES = ("stock_ppo", "ppo", "ppo_fast", "ppo_fast_compiled", "grpo", "grpo_fast", "grpo_fast_compiled", "rloo",
         "rloo_fast", "rloo_fast_compiled", "reinforce_loo_fast", "reinforce_loo_fast_compiled")  # fmt: skip
STOCK = {"ppo": "stock_ppo", "rloo": "rloo", "grpo": "grpo", "reinforce_loo": "grpo"}
WARM_UP = 2


# One run -----------------------------------------------------------------------------------------


class Clock:
    """Seconds a step in each of the methods that are watched, the innermost counted alone."""

    def __init__(self, cuda: bool):
        self.cuda, self.now, self.steps = cuda, {}, []

    def read(self) -> float:
        if self.cuda:
            import torch

            torch.cuda.synchronize()
        return time.perf_counter()

    def watch(self, owner, method: str, name: str) -> None:
        inner = getattr(owner, method)

        def timed(*args, **kwargs):
            start = self.read()
            try:
                with range_of("score" if name == "rollout" else name):
                    return inner(*args, **kwargs)
            finally:
                self.now[name] = self.now.get(name, 0.0) + self.read() - start

        setattr(owner, method, timed)

    def step(self) -> None:
        self.now["at"] = self.read()
        self.steps.append(self.now)
        self.now = {}


def run(case: str, options: argparse.Namespace) -> dict:
    import torch
    from transformers import TrainerCallback

    cuda = torch.cuda.is_available()
    trainer = build(case, options, cuda)
    clock = Clock(cuda)
    if case == "stock_ppo":
        from trl.experimental.ppo import ppo_trainer

        clock.watch(ppo_trainer, "batch_generation", "generate")
        per_update = 1
    else:
        per_update = getattr(trainer.args, "num_ppo_epochs", 1)
        clock.watch(trainer, "_generate_single_turn", "generate")
        clock.watch(trainer, "_generate_and_score_completions", "rollout")

    class Steps(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            clock.now["at"] = clock.read()
            clock.steps.append(clock.now)
            clock.now = {}
            if cuda:
                self.start = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % per_update == 0:
                clock.step()
                if options.profile and len(clock.steps) == options.steps + 1:  # the start is one of them
                    self.profiler = profiler()
                    self.profiler.start()

        def on_train_end(self, args, state, control, **kwargs):
            if getattr(self, "profiler", None) is not None:
                clock.read()
                self.profiler.stop()

    steps = Steps()
    trainer.add_callback(steps)
    trainer.train()
    gaps = [b | {"step": b["at"] - a["at"]} for a, b in zip(clock.steps, clock.steps[1:], strict=False)]
    if options.profile:
        gaps = gaps[:-1]

    def median(name: str) -> float:
        return statistics.median(gap.get(name, 0.0) for gap in gaps[WARM_UP:])

    fast = getattr(trainer, "bench_fast", None)
    of_phases = {
        "generate": median("generate"), "score": max(median("rollout") - median("generate"), 0.0),
        "update": median("step") - max(median("rollout"), median("generate")),
    }  # fmt: skip
    if options.profile:
        print(f"\n### {case}, {options.dtype}", *lines(steps.profiler, cuda, of_phases), sep="\n", file=sys.stderr)
    return {
        "case": case, "step": median("step"), "generate": median("generate"),
        "score": of_phases["score"],
        "samples_per_second": options.samples / median("step"),
        "tokens_per_second": options.samples * options.response / max(median("generate"), 1e-9),
        "update": of_phases["update"],
        "peak_gb": (torch.cuda.max_memory_allocated() - steps.start) / 1e9 if cuda else 0.0,
        "all_steps": [round(gap["step"], 2) for gap in gaps],
        "refused": getattr(fast, "refused", None), "compilations": getattr(fast, "compilations", 0),
    }  # fmt: skip


def build(case: str, options: argparse.Namespace, cuda: bool):
    import torch
    from datasets import Dataset
    from transformers import Qwen3ForCausalLM, Qwen3ForSequenceClassification

    from trl_ext import tiny

    torch.manual_seed(0)
    tokenizer = tiny.byte_tokenizer()
    config = qwen3_config(options.shape, tokenizer)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[options.dtype]

    def made(model_class, config):
        with torch.device("cuda" if cuda else "cpu"):
            model = model_class(config)
        return model.to(dtype)

    folder = tempfile.mkdtemp()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    letters = torch.randint(97, 123, (options.samples * (options.steps + 3) * processes, options.prompt)).tolist()
    prompts = ["".join(map(chr, row)) for row in letters]
    micro = options.micro_batch
    common = {
        "output_dir": folder, "per_device_train_batch_size": micro, "learning_rate": 1e-6, "bf16": cuda,
        "gradient_accumulation_steps": options.samples // micro, "report_to": "none", "save_strategy": "no",
        "disable_tqdm": True, "logging_steps": 1, "use_cpu": not cuda, "temperature": 1.0,
        "gradient_checkpointing": True,
    }  # fmt: skip
    no_end = {"generation_kwargs": {"min_new_tokens": options.response}}
    total = options.steps + (1 if options.profile else 0)
    if "ppo" in case:
        ppo = common | {
            "num_ppo_epochs": 1, "num_mini_batches": 1, "response_length": options.response,
            "total_episodes": options.samples * total, "num_sample_generations": 0,
        }  # fmt: skip
        value_model = made(Qwen3ForSequenceClassification, qwen3_config(options.shape, tokenizer, num_labels=1))
        model, reference = made(Qwen3ForCausalLM, config), made(Qwen3ForCausalLM, config)
        data = Dataset.from_dict({"input_ids": tokenizer(prompts)["input_ids"]})
        from bench_trainers import free_reward

        if case == "stock_ppo":
            from trl.experimental.ppo import PPOConfig, PPOTrainer

            return PPOTrainer(PPOConfig(**ppo), tokenizer, model, reference, free_reward(), data, value_model,
                              eval_dataset=data)  # fmt: skip
        from trl_ext import PPOConfig, PPOTrainer

        trainer = PPOTrainer(PPOConfig(**ppo, **no_end, stop_token="eos"), tokenizer, model, reference, free_reward(),
                             data, value_model)  # fmt: skip
    else:
        from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

        from trl_ext import ReinforceLOOConfig, ReinforceLOOTrainer

        config_class, trainer_class, more = {
            "grpo": (GRPOConfig, GRPOTrainer, {"beta": 0.0}),
            "rloo": (RLOOConfig, RLOOTrainer, {"beta": 0.05}),
            "reinforce_loo": (ReinforceLOOConfig, ReinforceLOOTrainer, {"beta": 0.0}),
        }[case.split("_fast")[0]]
        args = config_class(**common, **no_end, **more, max_completion_length=options.response, num_generations=8,
                            max_steps=total)  # fmt: skip
        model, adapter = made(Qwen3ForCausalLM, config), {}
        if options.adapter:
            adapter["peft_config"] = lora_config()
        if options.adapter == "qlora":  # the same weights
            model.to(torch.bfloat16).save_pretrained(f"{folder}/policy")
            model = in_four_bits(f"{folder}/policy")
        elif case.startswith("rloo"):  # it loads its reference by name
            model.save_pretrained(f"{folder}/policy")
            model = Qwen3ForCausalLM.from_pretrained(f"{folder}/policy", dtype=dtype)
        trainer = trainer_class(model, free_function, args, train_dataset=Dataset.from_dict({"prompt": prompts}),
                                processing_class=tokenizer, **adapter)  # fmt: skip
    if case.endswith("_compiled"):
        from trl_ext.trainers.compiled_layers import compile_layers

        for each in (trainer.model, getattr(trainer, "ref_model", None)):
            if each is not None:
                compile_layers(each)
    if "_fast" in case:
        from trl_ext.generation import FastGeneration

        trainer.bench_fast = FastGeneration(trainer).start()
    return trainer


def free_function(completion_ids, **kwargs):
    return [float(ids[0] % 7) for ids in completion_ids]


# Attention alone ---------------------------------------------------------------------------------


def attention() -> None:
    """Microseconds a call, and the difference from float64, of one decoded token."""
    import torch
    import torch.nn.functional as F

    from trl_ext.generation.attention import grouped_decode

    print("| sequences | heads | cache | used | SDPA, heads repeated | SDPA, grouped | grouped_decode | error |")
    print("|---|---|---|---|---|---|---|---|")
    for batch, heads, kv_heads, length, used in (
        (8, 16, 8, 320, 192), (64, 16, 8, 320, 192), (64, 16, 8, 320, 320), (256, 16, 8, 320, 192),
        (64, 32, 8, 1024, 600),
    ):  # fmt: skip
        dim = 128
        caches = [torch.randn(2, batch, kv_heads, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        query = torch.randn(batch, heads, 1, dim, device="cuda", dtype=torch.bfloat16)
        mask = torch.zeros(batch, 1, 1, length, dtype=torch.bool, device="cuda")
        mask[..., 10:used] = True
        groups, scale = heads // kv_heads, dim**-0.5

        def repeated(key, value, query=query, mask=mask, groups=groups):
            key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

        def grouped(key, value, query=query, mask=mask, kv_heads=kv_heads, groups=groups):
            return F.scaled_dot_product_attention(query.view(-1, kv_heads, groups, 128), key, value, attn_mask=mask)

        def ours(key, value, query=query, mask=mask, scale=scale):
            return grouped_decode(query, key, value, mask, scale)

        wanted = grouped(*caches[0].double(), query=query.double()).reshape(batch, 1, heads, dim)
        error = ((ours(*caches[0]).double() - wanted).norm() / wanted.norm()).item()
        times = [_microseconds(lambda cache, f=f: f(*cache), caches) for f in (repeated, grouped, ours)]
        print(f"| {batch} | {heads} / {kv_heads} | {length} | {used} | "
              + " | ".join(f"{t:.0f}" for t in times) + f" | {error:.1e} |", flush=True)  # fmt: skip


def _microseconds(function, caches: list) -> float:
    import torch

    for cache in caches:
        function(cache)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(12):
            function(caches[i % len(caches)])
    times = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 12 * 1000)
    return statistics.median(times)


# The comparison ----------------------------------------------------------------------------------


def worker(case: str, dtype: str, options: argparse.Namespace) -> dict | None:
    python = options.stock_python if case == "stock_ppo" else sys.executable
    words = [python, "-W", "ignore", __file__, "--worker", case, "--dtype", dtype]
    for name in ("samples", "prompt", "response", "micro_batch", "steps", "shape"):
        words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    # of TRL 1.12's PPO alone: it reads Accelerate's precision and not the option `bf16`
    environment = {**os.environ, **({"ACCELERATE_MIXED_PRECISION": "bf16"} if case == "stock_ppo" else {})}
    words += ["--profile"] if options.profile else []
    words += ["--adapter", options.adapter] if options.adapter else []
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if options.profile:
        print(done.stderr, file=sys.stderr, flush=True)
    if done.returncode:
        print(f"{case} in {dtype} failed:\n{done.stderr[-1500:]}", file=sys.stderr, flush=True)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def line(result: dict, dtype: str, stock: dict | None) -> str:
    times = f"{result['samples_per_second'] / stock['samples_per_second']:.2f}" if stock else ""
    seconds = " | ".join(f"{result[name]:.2f}" for name in ("step", "generate", "score", "update"))
    return (
        f"| {result['case']} | {dtype} | {seconds} | {result['samples_per_second']:.1f} | {times} | "
        f"{result['tokens_per_second']:,.0f} | {result['peak_gb']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock-python", help="a Python with trl 1.12, for stock PPO; without it that is left out")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--response", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--shape", choices=list(SHAPES), default="0.6B")
    parser.add_argument(
        "--profile", action="store_true", help="of one more step, on the standard error: kernels by phase"
    )
    parser.add_argument("--adapter", choices=("lora", "qlora"), help="of GRPO, RLOO and reinforce_loo, not of PPO")
    parser.add_argument("--attention", action="store_true", help="the attention of one token alone")
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run(options.worker, options)))
        return
    if options.adapter and any("ppo" in case for case in options.cases):
        parser.error("--adapter is not for PPO: name the others with --cases")
    if options.attention:
        attention()
        return
    print(f"{options.shape} shape, {options.samples} samples of {options.prompt} + {options.response} tokens\n")
    print("| trainer | weights | step, s | generate | score | update | samples/s | times stock | tokens/s | peak, GB |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for dtype in options.dtypes:
        found: dict[str, dict] = {}
        for case in options.cases:
            if case == "stock_ppo" and not options.stock_python:
                continue
            result = worker(case, dtype, options)
            if result is not None:
                found[case] = result
                print(line(result, dtype, found.get(STOCK.get(case.split("_fast")[0], ""))), flush=True)
                if result["refused"]:
                    print(f"{case}: refused, {result['refused']}", file=sys.stderr, flush=True)
                print(
                    f"{case}: steps {result['all_steps']}, {result['compilations']} graphs", file=sys.stderr, flush=True
                )


if __name__ == "__main__":
    main()
