"""Two processes of `test_disagreeing.py`: short runs with fast generation, in whose second batch one of the two cannot
generate fast; how each process ended, a line each."""

import os
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "scale"))
from gloo_engines import allow_engines_on_the_cpu
from trainer_builders import loo_trainer, stock_trainer

from trl_ext.generation import FastGeneration, fast_generation

FIRST, SECOND = 1, 2
FAULTY, BOTH = 1, -1
OPTIONS = {"per_device_train_batch_size": 8, "max_steps": 3, "num_generations": 4, "max_completion_length": 8}


def stock(folder, **options):
    return stock_trainer(folder, **(OPTIONS | options))


def ours(folder, **options):
    return loo_trainer(folder, **(OPTIONS | {"beta": 0.05} | options))


def greedy(folder):
    return ours(folder, baseline="greedy")


def evaluated(folder):
    """After an evaluation FSDP2 may hold the weights together that it divides again in the next backward."""
    return stock(folder, eval_strategy="steps", eval_steps=1, eval_on_start=True, per_device_eval_batch_size=4)


def run(build, step: str, error: Exception, correct: bool, faulty: int = FAULTY, nth: int = SECOND) -> str:
    trainer = build(Path(f"/tmp/{os.getpid()}"))  # written to by nothing
    generation = FastGeneration(trainer, dtype=torch.float32, correct=correct)
    inner, calls = getattr(generation, step), []

    def failing(*args, **kwargs):
        calls.append(None)
        if len(calls) == nth and faulty in (trainer.accelerator.process_index, BOTH):
            raise error
        return inner(*args, **kwargs)

    setattr(generation, step, failing)
    with warnings.catch_warnings(record=True) as told, generation:
        warnings.simplefilter("always")
        trainer.train()
    noted = [i for i, row in enumerate(trainer.state.log_history) if "sampling/importance_sampling_ratio/mean" in row]
    told = [str(each.message) for each in told if "generation goes on as" in str(each.message)]
    norm = sum(parameter.float().norm() for parameter in trainer.model.parameters())
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return f"{trainer.state.global_step} {norm:.5f} {noted} {len(told)} {generation.refused}"


if __name__ == "__main__":
    sharded = os.environ.get("ACCELERATE_USE_FSDP") == "true"
    if sharded:
        allow_engines_on_the_cpu()
    fast_generation.DEVICES = ("cpu",)
    memory, compiler = torch.cuda.OutOfMemoryError("no"), RuntimeError("an operator")
    cases = {
        "stock corrected": (stock, "_sample", memory, True),
        "ours corrected": (ours, "_sample", compiler, True),
        "stock": (stock, "_take_weights", memory, False),
    }
    if sharded:
        cases = {
            "sample": (evaluated, "_sample", memory, False),
            "greedy": (greedy, "_sample", memory, True),
            "twin": (ours, "_sample", ValueError("no static cache"), False, BOTH),
            "room": (ours, "_make_twin", memory, True, FAULTY, FIRST),
            "compare": (ours, "_compare", fast_generation.NoTwinError("far"), False, FAULTY, FIRST),
        }
    for name, case in cases.items():
        os.write(1, f"{name} / {os.environ['RANK']} / {run(*case)}\n".encode())  # one write: both share the pipe
