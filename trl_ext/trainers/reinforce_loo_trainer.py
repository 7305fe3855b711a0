"""REINFORCE with a leave-one-out or a learned baseline, as a subclass of TRL's GRPOTrainer."""

import inspect
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import RLOOTrainer

from ..checkpoints.saved import STATE_FILE, read_own_state
from ..errors import UserError
from ..functional import (
    at_last_token,
    clipped_value_loss,
    decayed,
    explained_variance,
    gae,
    gae_over_turns,
    kl_estimate,
    learning_mask,
    masked_mean,
    masked_whiten,
    scaled_by_group,
    token_log_probs,
)
from ..generation import FastGeneration
from ..rewards.options import LARGEST
from ..rewards.probing import is_probing
from .baselines import GroupBaseline
from .compiled_layers import compile_layers
from .episodes import EpisodeTrainer
from .greedy import greedy_rewards
from .json_actions import JsonActions
from .kl_controller import KLController
from .process_statistics import global_means, global_moments
from .reference import (
    REFERENCE_ADAPTER,
    REFERENCE_FILE,
    ReferenceUpdateCallback,
    add_reference_adapter,
    copy_of_policy,
    is_peft,
    load_reference,
    no_reference_by_name,
    prepare_reference,
    save_reference,
)
from .reinforce_loo_config import ReinforceLOOConfig
from .value_function import (
    PREFIX,
    VALUE_FILE,
    ValueFunction,
    add_value_function,
    hide_from_vllm,
    load_value_function,
    split_value_state,
)

# What the base class puts into its output for a multimodal forward, under the names that forward takes
MULTIMODAL = ("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
              "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids")  # fmt: skip


SCORED_AT_ONCE = 16_384  # tokens
_SKIPPED_HEAD_IS_LOST = Version(torch.__version__) < Version("2.13.0")


class ReinforceLOOTrainer(EpisodeTrainer):
    """GRPOTrainer whose advantages come from a leave-one-out or a learned baseline.

    Its only changes, all after the rewards: the KL to a frozen reference is subtracted from the reward instead of added
    to the loss; the advantages are leave-one-out (one number a completion) or GAE (one a token); with
    `baseline="value"` a value function is trained beside the policy. On a CPU it computes log-probabilities from plain
    logits of the completion, where TRL's fused head has no kernel. Generation, rewards, the clipped loss, the entropy
    bonus, checkpoints and logs are the base class's.

    Args, besides GRPOTrainer's:
        ref_model (`PreTrainedModel`, *optional*): defaults to a copy of `model` (with PEFT: `model` without adapters).
        value_model (`nn.Module`, *optional*): separate value model with a `score` head, for `baseline="value"`; None
            is a scalar head on the policy's own hidden states.
    """

    _tag_names = ["trl", "reinforce-loo"]  # noqa: RUF012 - as TRL declares it
    _name = "REINFORCE-LOO"
    _paper = RLOOTrainer._paper

    def __init__(self, model, reward_funcs=None, args=None, *positional, ref_model=None, value_model=None, **kwargs):
        args = args or ReinforceLOOConfig()
        if value_model is not None and args.baseline != "value":
            raise UserError(f"a value model is given, which baseline={args.baseline!r} has no use for: set 'value'.")
        _check_adapter(model)
        self._scoring: Any = None  # while a batch is scored: what the base class computed on the way
        self._last_forward: Any = None  # (per_token_logps, values, entropies) of the last one outside scoring
        peft = is_peft(model, kwargs.get("peft_config"))
        if ref_model is None and args.beta != 0.0 and not peft:
            ref_model = copy_of_policy(model)
        with no_reference_by_name(args, ref_model):
            super().__init__(model, reward_funcs, args, *positional, **kwargs)
        self._check_pad_token()
        self._check_greedy()
        self._check_saving()
        looks_at_actions = args.mask == "json_actions" or args.invalid_json != "keep"
        self._json: JsonActions | None = None
        if looks_at_actions:
            self._json = JsonActions(self._tokenizer, args.action_schema, answers=bool(getattr(self, "tools", None)))
        self._baseline = GroupBaseline(args.baseline, args.ema_decay)
        self._kl = KLController(args.beta, args.kl_target, args.kl_horizon)
        if ref_model is not None:
            self.ref_model = prepare_reference(ref_model.float() if args.reference == "ema" else ref_model, self)
        if args.reference != "frozen":
            if self.ref_model is None:
                add_reference_adapter(self.model)
            self.add_callback(ReferenceUpdateCallback(self))
        self._set_beta(scoring=False)
        base = self.model.get_base_model() if peft else self.model
        accepted = inspect.signature(type(base).forward).parameters
        self._takes_position_ids = "position_ids" in accepted and not self._is_vlm
        self._takes_logits_to_keep = "logits_to_keep" in accepted
        if args.baseline == "value":  # after the adapters: PEFT's "all-linear" would wrap the head
            value_function = ValueFunction(_width(base), value_model)
            self._value_function = value_function.to(self.accelerator.device)
            add_value_function(base, self._value_function)
            if self.use_vllm:
                hide_from_vllm(self.vllm_generation)
        if args.compile_layers:
            for each in (self.model, self.ref_model):
                if each is not None:
                    compile_layers(each)
        if args.fast_generation:
            FastGeneration(self, correct=args.sampling_correction).start()

    def _check_pad_token(self):
        rows, pad_id = getattr(self.model.get_input_embeddings(), "num_embeddings", None), self._tokenizer.pad_token_id
        if rows is not None and pad_id >= rows:  # stock PPO feeds 0 in its place; here it is fed, and masked
            raise UserError(
                f"the pad token {self._tokenizer.pad_token!r} has id {pad_id}, the model embeds {rows} tokens: call "
                "model.resize_token_embeddings(len(tokenizer)), or pad with a token that it knows."
            )

    def _check_greedy(self):
        owner = "rollout_func" if self.rollout_func is not None else "environment_factory"
        if self.args.baseline == "greedy" and (self.rollout_func or getattr(self, "environment_factories", None)):
            raise UserError(f"baseline='greedy' cannot decode greedily in a {owner}: set baseline='loo' or 'ema'.")

    def _check_saving(self):
        """TRL keeps the rollouts that are still to be learned from in no checkpoint."""
        args = self.args
        steps = args.steps_per_generation * self.num_iterations / args.gradient_accumulation_steps
        saves = args.save_strategy == "steps" and args.save_steps >= 1
        if saves and steps > 1 and args.save_steps % steps:
            warnings.warn(
                f"save_steps={args.save_steps} saves in the middle of a generation, which {steps:g} optimizer steps "
                f"learn from: a run resumed there generates anew. Set save_steps to a multiple of {steps:g}.",
                stacklevel=3,
            )

    def _set_beta(self, scoring: bool):
        """The base class reads `self.beta` twice: to score the reference, and to add the KL to the loss."""
        in_base_loss = not self.args.kl_in_reward and self.args.kl_estimator == "k3"
        self.beta = self._kl.value if scoring or in_base_loss else 0.0

    def _get_train_sampler(self, dataset=None):
        """TRL's sampler draws every pass over the data from one generator, whose state no checkpoint holds: a resumed
        run would see other prompts from its second pass on. Here a pass depends on the seed and its number alone."""
        sampler = super()._get_train_sampler(dataset)
        if self.shuffle_dataset:
            sampler.set_epoch = lambda epoch: sampler.generator.manual_seed(self.args.seed + epoch)
        return sampler

    # Log-probabilities and values of one forward ------------------------------------------------------------------

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if not is_probing():  # RewardReliabilityCallback may ask again about a few completions
            self._scoring["rewards_per_func"] = rewards_per_func  # of every process, NaN where a function gave None
        return rewards_per_func

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False,
        compute_aux_loss=False, **multimodal,
    ):  # fmt: skip
        values, scoring = [], self._scoring
        if batch_size is not None and not torch.is_grad_enabled() and input_ids.device.type == "cuda":
            # Without gradients large pieces take no more memory than one that trains, and far less of the host's time
            batch_size = max(batch_size, SCORED_AT_ONCE // input_ids.size(1))
        with_values = self.args.baseline == "value" and (scoring is None or scoring["policy_next"])

        def recording_model(**inputs):
            if self._takes_position_ids:  # absolute positions must skip the left padding, as they do in `generate`
                mask = inputs["attention_mask"]
                inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
            output = model(**inputs, **({"with_values": True} if with_values else {}))
            if with_values:
                values.append(output.state_values[:, -logits_to_keep:])
            return output

        arguments = (recording_model, input_ids, attention_mask, logits_to_keep, batch_size)
        if self._use_plain_logits(multimodal, compute_aux_loss):
            result = *self._logps_from_logits(*arguments), None
        else:
            result = super()._get_per_token_logps_and_entropies(
                *arguments, compute_entropy, compute_aux_loss, **multimodal
            )
        forward = (result[0], torch.cat(values) if values else None)
        if scoring is None:
            self._last_forward = (*forward, result[1])
        elif scoring["policy_next"]:
            scoring["policy_forward"], scoring["policy_next"] = forward, False
        return result

    def _use_plain_logits(self, multimodal: dict, compute_aux_loss: bool) -> bool:
        """On a CPU TRL's fused LM head has no kernel: it scores the prompt too and computes every logit twice. Under
        FSDP2 it does not call the head that Accelerate puts into one group with the embeddings: before torch 2.13 their
        weights are then missing in the next forward ("got mixed torch.Tensor and DTensor")."""
        is_text = not compute_aux_loss and all(value is None for value in multimodal.values())
        is_plain = self.accelerator.device.type == "cpu" or (self.is_fsdp_enabled and _SKIPPED_HEAD_IS_LOST)
        return is_plain and is_text and self._takes_logits_to_keep

    def _logps_from_logits(self, model, input_ids, attention_mask, logits_to_keep, batch_size):
        logps, entropies, size = [], [], batch_size or len(input_ids)
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            with self.accelerator.autocast():
                output = model(input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep + 1, use_cache=False)
            chunk = token_log_probs(output.logits[:, :-1], ids[:, -logits_to_keep:], self.temperature)
            logps.append(chunk[0])
            entropies.append(chunk[1])
        return torch.cat(logps), torch.cat(entropies)

    def _policy_forward(self, output: dict, mode: str):
        """(per_token_logps, values) of the policy that sampled: the base class's own forward, or one more."""
        if self._scoring["policy_forward"] is not None:
            return self._scoring["policy_forward"]
        ids, mask = (torch.cat([output[f"prompt_{k}"], output[f"completion_{k}"]], dim=1) for k in ("ids", "mask"))
        size = self.args.per_device_train_batch_size if mode == "train" else self.args.per_device_eval_batch_size
        self._scoring["policy_next"] = True
        with torch.no_grad():
            self._get_per_token_logps_and_entropies(
                self.model, ids, mask, output["completion_ids"].size(1), batch_size=size,
                **{k: output[k] for k in MULTIMODAL if k in output},
            )  # fmt: skip
        return self._scoring["policy_forward"]

    # Advantages -----------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs):
        mode, kl_in_reward = "train" if self.model.training else "eval", self.args.kl_in_reward and self.args.beta != 0
        kl_here = kl_in_reward or self.args.kl_target is not None
        # The base class scores the policy, then the reference; the policy only if it takes several steps on the batch
        misaligned = self.args.gradient_accumulation_steps % (self.args.steps_per_generation * self.num_iterations) != 0
        corrected = self.use_vllm and self.vllm_importance_sampling_correction
        self._scoring = {"policy_next": misaligned or corrected, "policy_forward": None}
        per_token_logps: Any = None
        values: Any = None
        self._set_beta(scoring=True)
        try:
            output = super()._generate_and_score_completions(inputs)
            if kl_here or self.args.baseline == "value":
                per_token_logps, values = self._policy_forward(output, mode)
            rewards_per_func = self._scoring["rewards_per_func"]
        finally:
            self._set_beta(scoring=False)
            self._scoring = None
        scores = self._adjust_scores(self._weighted(rewards_per_func), output)
        own = learning_mask(output)
        if self._json is not None:
            scores = self._judge_actions(scores, output, own, mode)
        batch_size = output["completion_ids"].size(0)
        local = slice(self.accelerator.process_index * batch_size, (self.accelerator.process_index + 1) * batch_size)
        mask = self._drop_unscorable(output, ~scores[local].isnan())
        penalty = torch.zeros_like(mask, dtype=torch.float32)
        if kl_here:
            kl = kl_estimate(per_token_logps, output["ref_per_token_logps"], self.args.kl_estimator) * mask
            if kl_in_reward:
                penalty = self._kl.value * kl
                del output["ref_per_token_logps"]
            self._log_kl(mode, kl, mask, kl_in_reward)
        turn_rewards = self._turn_rewards(inputs, own, mask)
        added, taken = self.accelerator.gather(torch.stack([turn_rewards.sum(1), penalty.sum(1)], dim=1)).unbind(1)
        scores = scores + added
        rewards = scores - taken
        self._log_rewards(mode, scores, rewards)
        if self.args.baseline == "value":
            final = scores[local].nan_to_num(0.0) - turn_rewards.sum(1)
            advantages = self._value_advantages(output, mode, final, turn_rewards - penalty, values, mask, own)
        else:
            advantages = self._group_advantages(inputs, rewards, mode)[local]
        output["advantages"] = self._finish_advantages(advantages, mask, mode)
        if self._entropy_bonus_enabled:
            output["learning_tokens"] = self.accelerator.gather(mask.sum()).sum()
        if per_token_logps is not None:
            self._log_rollouts(mode, output, per_token_logps, mask, own)
        return output

    def _judge_actions(self, scores: torch.Tensor, output: dict, own: torch.Tensor, mode: str) -> torch.Tensor:
        """The scores, with those of invalid completions dropped or lowered; which tokens learn goes to `tool_mask`."""
        assert self._json is not None
        actions = self._json.find(output["completion_ids"], own)
        names = ("actions/valid_ratio", "actions/per_completion", "actions/token_ratio")
        each = torch.ones_like(actions.per_completion)
        pairs = [(actions.valid.float(), each), (actions.per_completion, each), (actions.mask, own)]
        for name, value in zip(names, global_means(self.accelerator, pairs), strict=True):
            self._metrics[mode][name].append(value)
        invalid = ~self.accelerator.gather(actions.valid)
        if self.args.mask == "json_actions":
            learning = actions.mask
            if self.args.invalid_json == "penalise":  # what has no action has no token to learn from otherwise
                learning = torch.where(actions.valid.unsqueeze(1), learning, own)
            output["tool_mask"] = own * learning
        return self._without_invalid(scores, invalid)

    def _without_invalid(self, scores: torch.Tensor, invalid: torch.Tensor) -> torch.Tensor:
        if self.args.invalid_json == "drop":
            return scores.masked_fill(invalid, torch.nan)
        if self.args.invalid_json == "penalise":
            return scores - self.args.invalid_json_penalty * invalid.float()
        return scores

    def _adjust_scores(self, scores: torch.Tensor, output: dict) -> torch.Tensor:
        """A subclass's last word on the scores, (completions of all processes,)."""
        return scores

    def _drop_unscorable(self, output: dict, scorable: torch.Tensor) -> torch.Tensor:
        """Returns the mask the loss uses, (B, T): it enters through `tool_mask`, the base class's own seam."""
        mask = learning_mask(output)
        output["tool_mask"] = mask = mask * scorable.unsqueeze(1).to(mask)
        output["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        return mask

    def _weighted(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        # an infinite reward, or one whose square is, would leave no weight finite: it is none, as NaN is
        rewards_per_func = rewards_per_func.masked_fill(rewards_per_func.abs() > LARGEST, torch.nan)
        scores = (rewards_per_func * self.reward_weights.to(rewards_per_func.device)).nansum(1)
        return scores.masked_fill(rewards_per_func.isnan().all(1), torch.nan)  # unscorable, as in the base class

    def _turn_rewards(self, inputs, own: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Rewards of single turns, (B, T): from `turn_rewards` that a `rollout_func` returns for each completion, or
        that an environment has. Each lies on the last token that learns up to the end of its turn, and else on the
        first one that does; turns beyond the last there is give theirs to that one."""
        environments = getattr(self, "environments", None) or [None] * len(inputs)
        found = torch.zeros_like(mask, dtype=torch.float32)
        for i, (row, environment) in enumerate(zip(inputs, environments, strict=True)):
            given = row.get("turn_rewards", getattr(environment, "turn_rewards", None))
            if given is None or not mask[i].any():
                continue
            inside = own[i].bool()
            ends = (inside & ~torch.nn.functional.pad(inside, (0, 1))[1:]).nonzero().flatten()
            learning = mask[i].nonzero().flatten()
            for turn, reward in enumerate(_numbers(given)):
                place = torch.searchsorted(learning, ends[min(turn, len(ends) - 1)], right=True) - 1
                found[i, learning[place.clamp(min=0)]] += reward
        return found

    def _group_advantages(self, inputs, rewards: torch.Tensor, mode: str) -> torch.Tensor:
        size = self.num_generations if mode == "train" else self.num_generations_eval
        groups = rewards.view(-1, size)
        greedy = None
        if self.args.baseline == "greedy":
            rewards_per_func, valid = greedy_rewards(self, inputs, self._json)
            greedy = self._without_invalid(self._weighted(rewards_per_func), ~valid)
            self._metrics[mode]["baseline/greedy"].append(greedy.nanmean().item())
            greedy = greedy.view(-1, size)
        advantages = self._baseline.advantages(groups, greedy, training=mode == "train")
        if self._baseline.average is not None:
            self._metrics[mode]["baseline/ema"].append(self._baseline.average)
        if self.args.advantage_normalize == "group":
            advantages = scaled_by_group(advantages, groups)
        return advantages.flatten()

    def _value_mask(self, output: dict, mask: torch.Tensor) -> torch.Tensor:
        """The states whose value is learned: those before each token that counts."""
        return mask

    def _value_advantages(self, output: dict, mode: str, scores, rewards, values, mask, own) -> torch.Tensor:
        value_mask = self._value_mask(output, mask)
        values, rewards = values * value_mask, at_last_token(scores, value_mask) + rewards
        if self.args.whiten_rewards:
            moments = global_moments(self.accelerator, rewards, value_mask)
            rewards = masked_whiten(rewards, value_mask, *moments, shift_mean=False)
        if self.args.gae_steps == "turn":
            advantages, returns, value_mask = gae_over_turns(
                rewards, values, value_mask, self.args.gamma, self.args.lam, own
            )
        else:
            advantages, returns = gae(rewards, values, value_mask, self.args.gamma, self.args.lam)
        output["old_values"], output["returns"], output["value_mask"] = values, returns, value_mask
        variances = (global_moments(self.accelerator, x, value_mask)[1] for x in (returns - values, returns))
        self._metrics[mode]["value/explained_variance"].append(explained_variance(*variances).item())
        self._metrics[mode]["value/mean"] += global_means(self.accelerator, [(values, value_mask)])
        return advantages * mask

    def _finish_advantages(self, advantages: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
        weights = mask if advantages.dim() == 2 else mask.any(1).to(advantages)  # what does not learn has no say
        mean, variance = global_moments(self.accelerator, advantages, weights)
        if self.args.advantage_normalize == "batch":
            advantages = masked_whiten(advantages, weights, mean, variance)
        self._metrics[mode]["advantages/mean"].append(mean.item())
        self._metrics[mode]["advantages/std"].append(variance.sqrt().item())
        if self.num_generations == 1:  # groups of one have no spread: not a dead signal
            self._metrics[mode].pop("frac_reward_zero_std", None)
        rows = self.accelerator.gather(advantages if advantages.dim() == 1 else advantages.sum(1)).tolist()
        logged = self._logs["advantages"]  # the completions table: replace the base class's advantages
        for _ in range(min(len(logged), len(rows))):
            logged.pop()
        logged.extend(rows)
        return advantages

    # Loss -----------------------------------------------------------------------------------------

    def _compute_loss(self, model, inputs):
        mode, args = "train" if self.model.training else "eval", self.args
        if args.entropy_decay != 1.0:  # from the step alone: a resumed run and every process have the same
            step = self.state.global_step
            self.entropy_coef = decayed(args.entropy_coef, args.entropy_decay, args.min_entropy_coef, step)
        bonus = self._entropy_coef_that_applies()  # the base class changes it at the end of a step
        loss = super()._compute_loss(model, inputs)
        (with_gradient, values, entropies), self._last_forward = self._last_forward, None
        per_token_logps, mask = with_gradient.detach(), inputs["completion_mask"] * inputs["tool_mask"]
        log_ratio = (per_token_logps - inputs.get("old_per_token_logps", per_token_logps)) * mask
        advantages = inputs["advantages"].view(len(mask), -1)
        ratio, epsilon = log_ratio.exp(), (self.epsilon_low, self.epsilon_high)
        clipped = torch.where(advantages > 0, ratio > 1 + epsilon[1], (ratio < 1 - epsilon[0]) & (advantages < 0))
        accumulation = self.current_gradient_accumulation_steps if mode == "train" else 1
        if bonus and mode == "train":
            loss = loss - bonus * self._to_mean_of_step(entropies, mask, inputs, accumulation)
        one = torch.ones(1, device=loss.device)
        means = {
            "loss/policy_avg": (loss.detach().reshape(1) * accumulation, one),
            "val/ratio": (ratio, mask),
            "policy/approxkl_avg": (log_ratio.square() / 2, mask),
            "policy/clipfrac_avg": (clipped.float(), mask),
        }
        if args.beta != 0 and not args.kl_in_reward and self.beta == 0:  # the base class has k3 alone
            kl = kl_estimate(with_gradient, inputs["ref_per_token_logps"], args.kl_estimator)
            if args.use_bias_correction_kl:  # as the base class's k3; detached, since k2's gradient is that of the KL
                kl = kl * ratio
            loss = loss + self._kl.value * self._aggregated(kl, mask, inputs, accumulation)
            means["kl"] = (kl.detach(), mask)
        if args.baseline == "value":
            per_token, value_clipped = clipped_value_loss(
                values, inputs["old_values"], inputs["returns"], args.cliprange_value
            )
            value_mask = inputs["value_mask"]
            value_loss = self._aggregated(per_token, value_mask, inputs, accumulation)
            loss = loss + args.vf_coef * value_loss
            means["loss/value_avg"] = (value_loss.detach().reshape(1) * accumulation, one)
            means["val/clipfrac_avg"] = (value_clipped, value_mask)
        for name, value in zip(means, global_means(self.accelerator, list(means.values())), strict=True):
            self._metrics[mode][name].append(value)
        return loss

    def _entropy_coef_that_applies(self) -> float:
        if not self._entropy_bonus_enabled:
            return 0.0
        if self.use_adaptive_entropy and self._last_world_entropy > self.args.entropy_target:
            return 0.0
        return self.entropy_coef

    def _to_mean_of_step(self, entropies: torch.Tensor, mask: torch.Tensor, inputs: dict, accumulation: int):
        """What makes the base class's entropy bonus, a mean over the tokens of a micro-batch, that over those of an
        optimizer step: two processes, whose micro-batches are others, take the step of one. With
        `top_entropy_quantile`, whose tokens a micro-batch chooses, over those of all processes alone."""
        own = mask
        if self.top_entropy_quantile < 1.0:
            own = mask * self.get_high_entropy_mask(entropies, mask, 1 - self.top_entropy_quantile)
            of_step = self.accelerator.gather(own.sum()).sum() * accumulation
        else:
            of_step = inputs["learning_tokens"] * accumulation / self.args.steps_per_generation
        wanted = self.accelerator.num_processes / of_step.clamp(min=1e-9)
        base = 1 / own.sum().clamp(min=1.0) / accumulation
        return (entropies * own).sum() * torch.where(own.sum() > 0, wanted - base, 0.0)

    def _aggregated(self, per_token: torch.Tensor, mask: torch.Tensor, inputs: dict, accumulation: int) -> torch.Tensor:
        """As the base class does with the policy's terms, so that coefficients weigh like with like and two processes
        take the step of one; of the micro-batch alone where the base class's mean is."""
        total = per_token * mask
        if self.loss_type == "dr_grpo":
            return total.sum() / (mask.size(0) * self.max_completion_length) / accumulation
        if self.loss_type == "grpo":
            return (total.sum(1) / mask.sum(1).clamp(min=1.0)).mean() / accumulation
        if self.loss_type in ("dapo", "cispo", "vespo"):  # over the tokens of all micro-batches of all processes
            tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
            window = accumulation / self.args.steps_per_generation if self.model.training else 1.0
            return total.sum() / (tokens * window)
        return masked_mean(per_token, mask) / accumulation

    # Metrics: the names that stock PPO, and RLOO up to 0.21, gave them ----------------------------

    def _log_kl(self, mode: str, kl: torch.Tensor, mask: torch.Tensor, in_reward: bool):
        per_token, per_sequence = global_means(self.accelerator, [(kl, mask), (kl.sum(1), mask.any(1).float())])
        self._metrics[mode]["objective/kl"].append(per_sequence)
        if in_reward:
            self._metrics[mode]["kl"].append(per_token)
            self._metrics[mode]["objective/non_score_reward"].append(-self._kl.value * per_sequence)
        if self.args.kl_target is not None:
            self._metrics[mode]["kl_coef"].append(self._kl.value)
            if mode == "train":
                self._kl.update(per_sequence, len(kl) * self.accelerator.num_processes)
                self._set_beta(scoring=False)

    def _log_rewards(self, mode: str, scores: torch.Tensor, rewards: torch.Tensor):
        self._metrics[mode]["objective/scores"].append(scores.nanmean().item())
        self._metrics[mode]["objective/rlhf_reward"].append(rewards.nanmean().item())

    def _log_rollouts(
        self, mode: str, output: dict, per_token_logps: torch.Tensor, mask: torch.Tensor, own: torch.Tensor
    ):
        eos = torch.tensor(self._eos_ids(), dtype=torch.long, device=mask.device)
        count = (torch.isin(output["completion_ids"], eos) & own.bool()).sum()  # whether it learns or not
        self._metrics[mode]["val/num_eos_tokens"].append(self.accelerator.reduce(count, reduction="sum").item())
        surprisal = [(-(per_token_logps * mask).sum(1), mask.any(1).float())]
        self._metrics[mode]["objective/entropy"] += global_means(self.accelerator, surprisal)

    def _eos_ids(self) -> list[int]:
        """The tokens that end a completion: TRL before 1.14 knows the tokenizer's alone."""
        return list(getattr(self, "eos_token_ids", [self._tokenizer.eos_token_id]))

    # Checkpoints ----------------------------------------------------------------------------------

    def _save_checkpoint(self, model, trial):
        """First what the base class does not know: a run that is killed before `trainer_state.json` is written still
        has the checkpoint before, which only then may go."""
        folder = os.path.join(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if self.args.reference != "frozen":
            save_reference(self, folder)
        if self.args.should_save:
            state = {"baseline": self._baseline.state_dict(), "kl": self._kl.state_dict()}
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, STATE_FILE), "w", encoding="utf-8") as file:
                json.dump(state, file)
        super()._save_checkpoint(model, trial)

    @property
    def checkpoint_files(self) -> list[str]:
        """What a resume with these options loads besides what every Trainer does; `train` looks for it beforehand."""
        args, files = self.args, []
        if args.baseline == "value":
            files.append(VALUE_FILE)
        if args.reference != "frozen":
            files.append(REFERENCE_FILE)
        if args.kl_target is not None or args.baseline == "ema":
            files.append(STATE_FILE)
        return files

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        if self.args.reference != "frozen":
            load_reference(self, checkpoint)
        if STATE_FILE not in self.checkpoint_files:
            return  # nothing moves: a checkpoint of another trainer will do
        path = Path(checkpoint, STATE_FILE)
        state = read_own_state(path) or {}
        try:
            self._baseline.load_state_dict(state["baseline"])
            self._kl.load_state_dict(state["kl"])
        except KeyError as error:  # broken, none, or of other options
            raise UserError(
                f"kl_target and baseline='ema' cannot be resumed without a sound {path}: resume from another "
                "checkpoint, or begin anew from the model in it (model_name_or_path)"
            ) from error
        self._set_beta(scoring=False)

    def _save(self, output_dir=None, state_dict=None):
        if self.args.baseline != "value":
            return super()._save(output_dir, state_dict)
        output_dir = output_dir or self.args.output_dir
        if not self.args.should_save:  # where weights are divided, the main process alone has them whole
            return super()._save(output_dir, state_dict)
        policy, value = split_value_state(state_dict or self.accelerator.unwrap_model(self.model).state_dict())
        super()._save(output_dir, policy)
        if value:
            save_file({k: v.contiguous() for k, v in value.items()}, os.path.join(output_dir, VALUE_FILE))

    def _load_best_model(self):
        super()._load_best_model()
        path = os.path.join(self.state.best_model_checkpoint, VALUE_FILE)
        if self.args.baseline == "value" and os.path.exists(path):
            load_value_function(self._value_function, load_file(path))

    def _load_adapter_that_trains(self, folder):
        """Beside another adapter Transformers before 5.20 or so loads that one alone (seen with 5.17 on a GPU): the
        policy would start anew without a word."""
        policy = self.accelerator.unwrap_model(self.model)
        files = (os.path.join(folder, f"adapter_model.{suffix}") for suffix in ("safetensors", "bin"))
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if REFERENCE_ADAPTER in getattr(policy, "peft_config", {}) and not sharded:
            if not any(map(os.path.exists, files)):
                raise UserError(f"there is no adapter_model.safetensors in {folder}: resume from another checkpoint.")
            policy.load_adapter(folder, "default", is_trainable=True)
            policy.set_adapter("default")

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_adapter_that_trains(resume_from_checkpoint)
        if self.args.baseline == "value":
            path = os.path.join(resume_from_checkpoint, VALUE_FILE)
            if not os.path.isfile(path):
                raise UserError(f"there is no {path}: resume from a checkpoint of a run with baseline='value'.")
            try:
                load_value_function(self._value_function, load_file(path))
            except (SafetensorError, ValueError) as error:
                raise UserError(f"{path} is broken, or of another value function: {error}.") from error

    def _issue_warnings_after_load(self, load_result):
        """Each resume would warn: the value function has a file of its own, and of two tied weights one is saved."""
        own = self.model._keys_to_ignore_on_save  # which Transformers compares with what is missing, and ties
        tied = {} if own else getattr(self.model, "all_tied_weights_keys", {})
        missing = [name for name in load_result.missing_keys if PREFIX not in name and name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))


def _width(base: Any) -> int:
    """Of the last hidden states, which the LM head reads: some OPT models project them to another size."""
    head = base.get_output_embeddings()
    return int(getattr(head, "in_features", None) or base.config.get_text_config().hidden_size)


def _check_adapter(model: Any) -> None:
    adapters = getattr(model, "peft_config", None)
    if adapters and "default" not in adapters:
        raise UserError(
            f"the adapter that trains must be called 'default', not {', '.join(map(repr, adapters))}: load it with "
            "adapter_name='default'."
        )


def _numbers(turn_rewards: Any) -> list[float]:
    """The rewards of a completion's turns; None and what is not finite are no reward."""
    try:
        given = [0.0 if reward is None else float(reward) for reward in turn_rewards]
    except (TypeError, ValueError):
        raise UserError(f"turn_rewards of a completion must be a list of numbers, not {turn_rewards!r}") from None
    return [reward if math.isfinite(reward) else 0.0 for reward in given]
