"""PPO as `trl.experimental.ppo.PPOTrainer` offered it until TRL 1.12, on top of ReinforceLOOTrainer."""

import math
import textwrap
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn
from transformers.utils import is_rich_available
from trl.trainer.utils import disable_dropout_in_model, print_prompt_completions_sample

from ..errors import UserError
from ..functional import with_terminal_state
from .ppo_config import PPOConfig
from .reinforce_loo_trainer import ReinforceLOOTrainer
from .reward_model import score_completions


class PPOTrainer(ReinforceLOOTrainer):
    """ReinforceLOOTrainer with a learned baseline, constructed as stock PPO was.

    Its only changes: the constructor and the meaning of steps (see `PPOConfig`); a data set of tokenised `input_ids` is
    generated from as it is; `reward_model` is an `nn.Module` with a `score` head, or TRL reward functions; a completion
    without its stop token is penalised; the value function also learns the state after the last token, where stock PPO
    puts the score; the metrics take stock PPO's names besides TRL's.

    Args:
        reward_model (`nn.Module`, reward function or list of them): a module is called by the stock protocol.
        reward_funcs: in place of `reward_model`: what `trl.GRPOTrainer` takes, and as it takes it.
        value_model (`nn.Module`, *optional*): with a `score` head, trained beside the policy. None: a scalar head on
            the policy's own hidden states.
        data_collator: ignored with a warning; prompts are padded only where they are generated from.
        kwargs: further arguments of `trl.GRPOTrainer` (`reward_processing_classes`, `tools`, `rollout_func`, ...).
    """

    _tag_names = ["trl", "ppo"]  # noqa: RUF012 - as TRL declares it
    _name = "PPO"
    _paper = {  # noqa: RUF012
        "title": "Proximal Policy Optimization Algorithms",
        "id": "1707.06347",
        "citation": textwrap.dedent("""\
            @article{schulman2017proximal,
                title        = {{Proximal Policy Optimization Algorithms}},
                author       = {John Schulman and Filip Wolski and Prafulla Dhariwal and Alec Radford and Oleg Klimov},
                year         = 2017,
                eprint       = {arXiv:1707.06347},
            }"""),
    }

    def __init__(self, args: PPOConfig, processing_class, model, ref_model=None, reward_model=None, train_dataset=None,
                 value_model=None, data_collator=None, eval_dataset=None, optimizers=(None, None), callbacks=None,
                 peft_config=None, *, reward_funcs=None, **kwargs):  # fmt: skip
        if train_dataset is None:
            raise UserError("`train_dataset` is required: pass one with a `prompt` or an `input_ids` column.")
        if (reward_model is None) == (reward_funcs is None):
            raise UserError(
                "Pass one of `reward_model` (a module with a `score` head, or functions) and `reward_funcs`."
            )
        if ref_model is not None and ref_model is model:
            raise UserError("`ref_model` is `model`: pass a copy of it, or None.")
        if data_collator is not None:
            warnings.warn("`data_collator` is ignored: prompts are not padded before generation.", stacklevel=2)
        scorers = list(reward_model) if isinstance(reward_model, list | tuple) else [reward_model]
        modules = [m for m in scorers if isinstance(m, nn.Module)]
        if args.disable_dropout:
            for module in [*modules, value_model]:
                if isinstance(module, nn.Module):
                    disable_dropout_in_model(module)
        self._prompt_token_ids: list[list[int]] | None = None  # of the batch at hand, where the data set is tokenised
        self._start: tuple[float, int] | None = None  # (time, episode) when this process began to generate
        length = len(train_dataset) if hasattr(train_dataset, "__len__") else None
        super().__init__(
            model,
            [self._reward_function(scorer) for scorer in scorers] if reward_funcs is None else reward_funcs,
            args.in_optimizer_steps(length),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
            peft_config=peft_config,
            ref_model=ref_model,
            value_model=value_model,
            **kwargs,
        )
        for module in modules:
            module.to(self.accelerator.device).eval().requires_grad_(False)
        self._set_stop_tokens()

    def _set_stop_tokens(self):
        """As stock PPO: just the token that `stop_token` or `stop_token_id` names; with neither, none ends a text."""
        args = self.args
        if self.use_vllm or not hasattr(self, "eos_token_ids"):  # vLLM, and TRL before 1.14, stop at EOS alone
            if args.stop_token == "eos":
                return
            raise UserError(
                f"stop_token={args.stop_token}, stop_token_id={args.stop_token_id}: "
                + ("not with vLLM" if self.use_vllm else "only with trl >= 1.14")
                + ", where the tokenizer's EOS ends a completion: set stop_token='eos'."
            )
        stop_id = self._tokenizer.eos_token_id if args.stop_token == "eos" else args.stop_token_id
        self.eos_token_ids = [] if stop_id is None else [stop_id]
        for config in (self.generation_config, self.accelerator.unwrap_model(self.model).generation_config):
            config.eos_token_id = stop_id
        self.generation_kwargs["eos_token_id"] = stop_id

    # Rewards --------------------------------------------------------------------------------------

    def _reward_function(self, scorer: nn.Module | Callable) -> Callable:
        """`scorer` as a TRL reward function. Functions stay what they are: TRL runs asynchronous ones together."""
        if not isinstance(scorer, nn.Module):
            return scorer

        def score(prompts, completions, completion_ids, **kwargs):
            prompt_ids = self._prompt_token_ids or self._tokenize_prompts(prompts)[0]
            return score_completions(
                scorer, prompt_ids, completion_ids, self._tokenizer.pad_token_id,
                self.args.per_device_train_batch_size, self.accelerator.device,
            )  # fmt: skip

        score.__name__ = "reward_model"
        return score

    def _adjust_scores(self, scores, output):
        if self.args.missing_eos_penalty is None:
            return scores
        stops = torch.tensor(self._eos_ids() or [self._tokenizer.eos_token_id], device=scores.device)
        stopped = (torch.isin(output["completion_ids"], stops) & output["completion_mask"].bool()).any(1)
        return scores - self.args.missing_eos_penalty * (~self.accelerator.gather(stopped)).float()

    def _value_mask(self, output, mask):
        return with_terminal_state(mask, output["completion_mask"])

    # A tokenised data set -------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs):
        self._start = self._start or (time.perf_counter(), self._episode())
        if "prompt" not in inputs[0] and "input_ids" in inputs[0]:
            pad_id = self._tokenizer.pad_token_id
            self._prompt_token_ids = [[int(i) for i in row["input_ids"] if i != pad_id] for row in inputs]
            texts = self._tokenizer.batch_decode(self._prompt_token_ids, skip_special_tokens=True)
            inputs = [{**row, "prompt": text} for row, text in zip(inputs, texts, strict=True)]
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self._prompt_token_ids = None

    def _tokenize_prompts(self, prompts):
        if self._prompt_token_ids is None:
            return super()._tokenize_prompts(prompts)
        return self._prompt_token_ids, None, {}

    # Logs -----------------------------------------------------------------------------------------

    def log(self, logs, start_time=None):
        metrics = self._metrics["train"]
        if self.model.training and metrics.get("val/ratio"):
            logs.update(self._stock_metrics(metrics, logs))
            self.state.episode = logs["episode"]
        is_update = "loss" in logs  # not an evaluation, nor the summary at the end
        super().log(logs, start_time)
        updates, every = self.state.global_step / self.args.optimizer_steps_per_update(), self._updates_per_sample()
        if is_update and every and updates % every == 0 and self.accelerator.is_main_process:
            self._print_samples()

    def generate_completions(self, sampling: bool = False):
        """Print nearly greedy completions of the evaluation set with their rewards: of its first batch if `sampling`.

        Stock PPO's method of that name, which scripts call after training. Without `eval_dataset` it does nothing.
        """
        if self.eval_dataset is None or not is_rich_available():
            return
        temperature, was_training = self.generation_config.temperature, self.model.training
        self.model.eval()
        self.generation_config.temperature = self.generation_kwargs["temperature"] = 0.01
        try:
            for inputs in self.get_eval_dataloader():
                with torch.no_grad():
                    self._prepare_inputs(inputs)
                if sampling:
                    break
        finally:
            self.generation_config.temperature = self.generation_kwargs["temperature"] = temperature
            self.model.train(was_training)
            self._metrics["eval"].clear()
        if self.accelerator.is_main_process:
            self._print_samples()

    def _print_samples(self):
        print_prompt_completions_sample(
            self._logs["prompt"], self._logs["completion"], self._logs["rewards"], self._logs["advantages"],
            self.state.global_step, 5,
        )  # fmt: skip

    def _stock_metrics(self, metrics: dict, logs: dict) -> dict:
        """What stock PPO logs and cannot be averaged over steps. `val/ratio_var` of one number is no data: left out."""
        start, first_episode = self._start or (time.perf_counter(), self._episode())
        stock: dict[str, float] = {"episode": self._episode()}
        stock["eps"] = (stock["episode"] - first_episode) / max(time.perf_counter() - start, 1e-9)
        if "learning_rate" in logs:
            stock["lr"] = logs["learning_rate"]
        if metrics.get("entropy"):
            stock["policy/entropy_avg"] = sum(metrics["entropy"]) / len(metrics["entropy"])
        ratios = [ratio for ratio in metrics["val/ratio"] if not math.isnan(ratio)]
        if len(ratios) > 1:
            stock["val/ratio_var"] = torch.tensor(ratios).var().item()
        return stock

    def _episode(self) -> int:
        """Completions trained on so far, counting the update at hand as done."""
        updates = math.ceil(self.state.global_step / self.args.optimizer_steps_per_update())
        return updates * self.args.generation_batch_size

    def _updates_per_sample(self) -> int:
        wanted, updates = self.args.num_sample_generations, self.args.num_total_batches
        return max(1, updates // wanted) if wanted and updates and is_rich_available() else 0
