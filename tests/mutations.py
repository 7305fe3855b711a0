"""`python tests/mutations.py [word ...]`: break each formula once, in a copy, and see that a test turns red.

With words, only mutations whose file or text holds one of them. Survivors are listed at the end; the exit status is 1
when there is one. Run it with trl 1.12, whose lane has the most tests; ten seconds a mutation. Not collected by pytest.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONAL = ["tests/functional"]
ADVANTAGES = ["tests/trainers/test_advantages.py"]
GRADIENTS = ["tests/trainers/test_gradients.py"]
LOGPS = ["tests/trainers/test_log_probabilities.py"]
REFERENCE = ["tests/trainers/test_reference.py"]
TRAJECTORIES = ["tests/trainers/test_trajectories.py"]
PPO = ["tests/trainers/test_ppo_trainer.py"]
CONFIG = ["tests/trainers/test_config.py"]
STOCK = ["tests/trainers/test_stock_ppo.py"]  # red on trl<1.13 alone
ACTIONS = ["tests/trainers/test_json_actions.py"]
BASELINES = ["tests/trainers/test_baselines.py"]
FOLLOWING = ["tests/trainers/test_following_reference.py"]
SCHEDULES = ["tests/functional/test_schedules.py"]
EPISODES = ["tests/trainers/test_episodes.py"]
TOOLS = ["tests/trainers/test_tool_guard.py"]
AGENT = ["tests/test_review_agent.py"]
PROCESSES = ["tests/trainers/test_two_processes.py"]

NUMBERS = ["tests/rewards/test_reliability_numbers.py", "tests/rewards/test_reliability.py"]
FAILURES = ["tests/rewards/test_failures.py"]
LOADING = ["tests/rewards/test_loading.py"]
SCHEMA = ["tests/rewards/test_json_schema.py"]
REMOTE = ["tests/rewards/test_remote.py"]
HEARD = ["tests/callbacks/test_reward_reliability.py"]

MOMENTS = ["tests/checkpoints/test_moments.py"]
DRIFT = ["tests/checkpoints/test_drift.py"]
LORA = ["tests/checkpoints/test_lora.py"]
TREND = ["tests/checkpoints/test_trend.py"]
SECURITY = ["tests/checkpoints/test_security.py"]
READER = ["tests/checkpoints/test_reader.py"]
FAULTS = ["tests/checkpoints/test_health_faults.py"]
ARCHITECTURE = ["tests/checkpoints/test_architecture.py"]
HEALTHY = ["tests/checkpoints/test_health_of_healthy.py"]

PREFLIGHTS = ["tests/preflight"]
RELIABILITY = "rewards/reliability/"
PREFLIGHT = "preflight/"
LOO = "trainers/reinforce_loo_trainer.py"

# (file in trl_ext, text, what it becomes, tests of which one must turn red)
MUTATIONS = [
    ("trainers/episode_limits.py", "turns > max_turns", "turns >= max_turns", EPISODES),
    ("trainers/episode_limits.py", "i >= max_tokens", "i > max_tokens", EPISODES),
    ("trainers/episode_limits.py", "last_turn_ended or i", "i", EPISODES),
    ("trainers/episode_limits.py", "return turns - (", "return turns - 0 * (", EPISODES),
    ("trainers/episodes.py", "self.args.max_episode_len or of_turn", "of_turn", EPISODES),
    ("trainers/episodes.py", "            self.max_completion_length = of_turn", "            pass", EPISODES),
    ("trainers/episodes.py", "> self.max_tool_calling_iterations", ">= self.max_tool_calling_iterations", EPISODES),
    ("trainers/episodes.py", "and ids[-1] not in ends", "", EPISODES),
    ("trainers/episodes.py", "(self.max_completion_length + 1)", "1", TOOLS),
    ("trainers/episodes.py", "failures + len(guard.ended)", "failures", TOOLS),
    ("trainers/episode_config.py", "self.max_episode_turns - 1", "self.max_episode_turns", EPISODES),
    ("trainers/tool_guard.py", "if size > self.longest:", "if False:", TOOLS),
    ("trainers/tool_guard.py", "                self._loop = None", "                pass", TOOLS),
    ("trainers/tool_guard.py", "if isinstance(error, KeyboardInterrupt) and pressed:", "if False:", TOOLS),
    ("trainers/tool_guard.py", "(error, KeyboardInterrupt) and pressed", "(error, KeyboardInterrupt)", TOOLS),
    ("trainers/tool_guard.py", "                loop.stop()", "                pass", TOOLS),
    ("rewards/time_limit.py", "(_watch, (seconds + _AGAIN", "(_watch, (seconds + 9", TOOLS),
    ("data/review_agent.py", "and not self._solved", "", AGENT),
    ("functional/advantages.py", "keepdim=True) - rewards", "keepdim=True)", FUNCTIONAL),
    ("functional/advantages.py", "scorable.sum(1, keepdim=True) - 1", "scorable.sum(1, keepdim=True)", FUNCTIONAL),
    ("functional/advantages.py", "scorable & (others_count > 0)", "scorable", FUNCTIONAL),
    ("functional/advantages.py", "scorable & (others_count > 0)", "others_count > 0", FUNCTIONAL),
    ("functional/advantages.py", "rewards.size(1) < 2", "rewards.size(1) < 1", FUNCTIONAL),
    ("functional/advantages.py", "+ gamma * next_value", "+ next_value", FUNCTIONAL),
    ("functional/advantages.py", "gamma * lam * next_advantage", "gamma * next_advantage", FUNCTIONAL),
    ("functional/advantages.py", "gamma * lam * next_advantage", "lam * next_advantage", FUNCTIONAL),
    ("functional/advantages.py", "torch.where(keep, values[:, t], next_value)", "values[:, t]", FUNCTIONAL),
    (
        "functional/advantages.py",
        "lam * next_advantage, next_advantage)",
        "lam * next_advantage, 0.0 * next_advantage)",
        FUNCTIONAL,
    ),
    ("functional/advantages.py", "(advantages + values) * mask", "advantages * mask", FUNCTIONAL),
    ("functional/advantages.py", "(advantages + values) * mask", "(advantages + values)", FUNCTIONAL),
    ("functional/kl.py", "return -diff", "return diff", FUNCTIONAL),
    ("functional/kl.py", "diff.square() / 2", "diff.square()", FUNCTIONAL),
    ("functional/kl.py", "diff.exp() - 1 - diff", "diff.exp() - 1 + diff", FUNCTIONAL),
    (
        "functional/kl.py",
        "diff = ref_per_token_logps - per_token_logps",
        "diff = per_token_logps - ref_per_token_logps",
        FUNCTIONAL,
    ),
    ("functional/losses.py", "torch.max(loss, clipped_loss)", "torch.min(loss, clipped_loss)", FUNCTIONAL),
    ("functional/losses.py", "old_values + cliprange", "old_values + 2 * cliprange", FUNCTIONAL),
    ("functional/losses.py", "old_values - cliprange", "-cliprange + 0 * old_values", FUNCTIONAL),
    ("functional/losses.py", "clipped_loss) / 2, (", "clipped_loss), (", FUNCTIONAL),
    ("functional/losses.py", "return loss / 2, torch.zeros", "return loss, torch.zeros", FUNCTIONAL),
    ("functional/losses.py", "clipped_loss > loss", "clipped_loss < loss", FUNCTIONAL),
    ("functional/losses.py", "1 - ratio", "ratio", FUNCTIONAL),
    ("functional/losses.py", "torch.full_like(ratio, torch.nan)", "torch.zeros_like(ratio)", FUNCTIONAL),
    ("functional/masking.py", "mask.sum().clamp(min=1)", "mask.numel()", FUNCTIONAL),
    ("functional/masking.py", ".clamp(min=1)", "", FUNCTIONAL),
    ("functional/masking.py", "torch.rsqrt(variance + 1e-8)", "1 / (variance + 1e-8)", FUNCTIONAL),
    ("functional/masking.py", "torch.rsqrt(variance + 1e-8)", "torch.rsqrt(variance)", FUNCTIONAL),
    ("functional/masking.py", "whitened + mean) * mask", "whitened + mean)", FUNCTIONAL),
    ("functional/masking.py", "else whitened + mean", "else whitened", FUNCTIONAL),
    ("functional/masking.py", "keepdim=True)) & mask.bool()", "keepdim=True))", FUNCTIONAL),
    ("functional/masking.py", "positions == completion_mask.sum", "positions == mask.sum", FUNCTIONAL),
    ("functional/masking.py", "is_terminal & mask.any(1, keepdim=True)", "is_terminal", FUNCTIONAL),
    ("functional/log_probs.py", "logsumexp = top - probs.gather", "logsumexp = top + probs.gather", FUNCTIONAL),
    ("functional/log_probs.py", "logsumexp.squeeze(-1) - torch.linalg", "-torch.linalg", FUNCTIONAL),
    ("functional/log_probs.py", "probs * entropies.unsqueeze(-1)", "0", FUNCTIONAL),
    ("functional/log_probs.py", "-grad_entropies.unsqueeze(-1)", "grad_entropies.unsqueeze(-1)", FUNCTIONAL),
    ("functional/log_probs.py", "probs.mul_(-grad_logps", "probs.mul_(grad_logps", FUNCTIONAL),
    ("functional/log_probs.py", "grad += entropy_grad", "pass", FUNCTIONAL),
    ("functional/log_probs.py", "logits.div_(temperature)", "logits.mul_(temperature)", FUNCTIONAL),
    ("functional/log_probs.py", "logits = logits.float()", "pass", FUNCTIONAL),
    ("trainers/reference.py", "return copy.deepcopy(model)", "return model", REFERENCE),
    ("trainers/reference.py", "return copy.deepcopy(model)", "return None", REFERENCE),
    ("trainers/reference.py", "ref_model.eval().requires_grad_(False)", "ref_model.eval()", REFERENCE),
    ("trainers/reference.py", "        args.beta = beta", "        pass", ADVANTAGES),
    (LOO, "if scoring or in_base_loss else 0.0", "if True else 0.0", ADVANTAGES),
    (LOO, "(mask.cumsum(1) - 1).clamp(min=0)", "mask.cumsum(1) * 0 + torch.arange(mask.size(1))", LOGPS),
    (LOO, "logits_to_keep:], self.temperature)", "logits_to_keep:], 1.0)", LOGPS),
    (LOO, "output.logits[:, :-1]", "output.logits[:, 1:]", LOGPS),
    (
        LOO,
        "output.state_values[:, -logits_to_keep:]",
        "output.state_values[:, -logits_to_keep:].roll(1, 1)",
        ADVANTAGES,
    ),
    (LOO, "self.reward_weights.to(rewards_per_func.device)", "1.0", ADVANTAGES),
    (
        LOO,
        "masked_fill(rewards_per_func.isnan().all(1), torch.nan)",
        "masked_fill(rewards_per_func.isnan().all(1), 0.0)",
        ADVANTAGES,
    ),
    (LOO, "self.args.kl_estimator) * mask", "self.args.kl_estimator)", ADVANTAGES),
    (LOO, "penalty = self._kl.value * kl", "penalty = kl", ADVANTAGES),
    (LOO, "rewards = scores - taken", "rewards = scores + taken", ADVANTAGES),
    (LOO, "rewards, mode)[local]", "rewards, mode)[:batch_size]", PROCESSES),
    (LOO, "mask = mask * scorable.unsqueeze(1).to(mask)", "mask = mask", ADVANTAGES),
    (
        "functional/masking.py",
        'mask * output["tool_mask"] if "tool_mask" in output else mask',
        "mask",
        GRADIENTS,
    ),
    (
        LOO,
        "self.accelerator.gather(mask.sum()).sum()",
        "self.accelerator.gather(output['completion_mask'].sum()).sum()",
        ADVANTAGES,
    ),
    (LOO, 'if mode == "train" else self.num_generations_eval', "", ADVANTAGES),
    (LOO, "at_last_token(scores, value_mask) + rewards", "at_last_token(scores, value_mask)", ADVANTAGES),
    (LOO, "*moments, shift_mean=False)", "*moments, shift_mean=True)", ADVANTAGES),
    (LOO, "self.args.gamma, self.args.lam)", "self.args.lam, self.args.gamma)", ADVANTAGES),
    (LOO, "return advantages * mask", "return advantages", ADVANTAGES),
    (
        LOO,
        "weights = mask if advantages.dim() == 2",
        "weights = torch.ones_like(mask) if advantages.dim() == 2",
        ADVANTAGES,
    ),
    (LOO, "loss = loss + args.vf_coef * value_loss", "loss = loss - args.vf_coef * value_loss", STOCK),
    (LOO, "value_mask, inputs, accumulation)", "value_mask, inputs, 1)", STOCK),
    (LOO, "loss.detach().reshape(1) * accumulation", "loss.detach().reshape(1)", STOCK),
    (LOO, "ratio > 1 + epsilon[1]", "ratio > 1", PPO),
    (LOO, "log_ratio.square() / 2", "log_ratio.square()", PPO),
    (LOO, "(-(per_token_logps * mask).sum(1)", "((per_token_logps * mask).sum(1)", ADVANTAGES),
    (LOO, "-self._kl.value * per_sequence", "self._kl.value * per_sequence", ADVANTAGES),
    (LOO, "self._value_function.load_state_dict(", "(", TRAJECTORIES),
    (LOO, "super()._save(output_dir, policy)", "super()._save(output_dir, state_dict)", TRAJECTORIES),
    ("trainers/process_statistics.py", 'accelerator.reduce(totals, reduction="sum")', "totals", PROCESSES),
    ("trainers/process_statistics.py", "(count - 1).clamp(min=1)", "count", ADVANTAGES),
    (
        "trainers/process_statistics.py",
        'squares = accelerator.reduce(((x - mean).square() * mask).sum(), reduction="sum")',
        "squares = ((x - mean).square() * mask).sum()",
        PROCESSES,
    ),
    ("trainers/value_function.py", "[:, :-1]", "[:, 1:]", ADVANTAGES),
    ("trainers/value_function.py", "nn.init.zeros_(self.head.weight)", "nn.init.ones_(self.head.weight)", PPO),
    ("trainers/value_function.py", "rest if found else name", "name", TRAJECTORIES),
    ("trainers/ppo_config.py", "self.num_ppo_epochs * self.num_mini_batches", "self.num_ppo_epochs", PPO),
    ("trainers/ppo_config.py", "return batch, accumulation // parts", "return batch, accumulation", PPO),
    ("trainers/ppo_config.py", "return batch // parts, 1", "return batch, 1", PPO),
    ("trainers/ppo_config.py", "int(value * steps)", "int(value)", PPO),
    ("trainers/ppo_config.py", "math.ceil(episodes", "math.floor(episodes", PPO),
    ("trainers/ppo_config.py", "value not in (fields[name].default, wanted)", "False", CONFIG),
    ("trainers/ppo_config.py", "setattr(self, name, wanted)", "pass", CONFIG),
    (
        "trainers/ppo_trainer.py",
        "scores - self.args.missing_eos_penalty",
        "scores + self.args.missing_eos_penalty",
        PPO,
    ),
    ("trainers/ppo_trainer.py", "if i != pad_id]", "]", PPO),
    (
        "trainers/ppo_trainer.py",
        'return with_terminal_state(mask, output["completion_mask"])',
        "return mask",
        ADVANTAGES,
    ),
    ("trainers/ppo_trainer.py", "self.eos_token_ids = [] if stop_id is None else [stop_id]", "pass", PPO),
    ("trainers/ppo_trainer.py", "return updates * self.args", "return self.state.global_step * self.args", PPO),
    ("trainers/reward_model.py", "ids.size(1) - 1 - mask", "ids.size(1) - 2 - mask", PPO),
    ("trainers/reward_model.py", "mask.cumsum(1) - mask.long()", "mask.cumsum(1)", PPO),
    ("trainers/reward_model.py", "ids.masked_fill(~mask, 0)", "ids", PPO),
    ("trainers/batches.py", "number // step * step", "number", CONFIG),
    ("trainers/reinforce_loo_config.py", "self.num_generations = 1\n", "pass\n", CONFIG),
    (RELIABILITY + "numbers.py", "(bad - value) / (bad - good)", "(bad - value) / bad", NUMBERS),
    (RELIABILITY + "numbers.py", "(last - counts + last - 1) / 2", "last - 1.0", NUMBERS),
    (RELIABILITY + "numbers.py", "(len(x) - 2)", "len(x)", NUMBERS),
    (RELIABILITY + "numbers.py", "weight @ (dx * dy)", "dx @ dy", NUMBERS),
    (RELIABILITY + "window.py", "np.where(missing, 0.0, rewards) @ weights", "np.nansum(rewards, axis=1)", NUMBERS),
    (RELIABILITY + "window.py", "totals[missing.all(axis=1)] = np.nan", "pass", NUMBERS),
    (RELIABILITY + "features.py", ".rsplit(None, _LAST)", ".split(None, _LAST)", NUMBERS),
    (
        RELIABILITY + "features.py",
        "1 - len(set(pairwise(words))) / pairs",
        "len(set(pairwise(words))) / pairs",
        NUMBERS,
    ),
    (
        RELIABILITY + "components.py",
        "not (lowest < values.min() - rounding and values.max() >= highest)",
        "True",
        NUMBERS,
    ),
    (RELIABILITY + "components.py", "(weighted * centered).mean()", "weighted.var()", NUMBERS),
    (RELIABILITY + "components.py", "abs(c.weight) * c.std / (", "c.std / (", NUMBERS),
    (RELIABILITY + "components.py", "return 0.0 if cancel else min", "return min", NUMBERS),
    (RELIABILITY + "components.py", "-values, -highest, -lowest", "-values, lowest, highest", NUMBERS),
    (RELIABILITY + "components.py", "if self.weight >= 0 else -self.mean", "", NUMBERS),
    (RELIABILITY + "stability.py", "sums[_SIDE:] - sums[:-_SIDE]", "sums[_SIDE:] - sums[0]", NUMBERS),
    (RELIABILITY + "stability.py", "away[at] <= _OUTLIER * noise", "False", NUMBERS),
    (RELIABILITY + "stability.py", "float(changes[at]) / scale", "float(changes[at])", NUMBERS),
    (RELIABILITY + "stability.py", "self.spread < 1 and self.rises", "self.spread < 1", NUMBERS),
    (RELIABILITY + "stability.py", "int(steps[after])", "int(steps[at])", NUMBERS),
    (RELIABILITY + "stability.py", "if learnt or tiny", "if tiny", NUMBERS),
    (RELIABILITY + "stability.py", "changes[at] > 0 and after", "after", NUMBERS),
    (RELIABILITY + "stability.py", "-drift / usual_std if drift < -_FALLS * scatter", "-drift if drift < 0", NUMBERS),
    (RELIABILITY + "stability.py", "self.jump * _UPWARDS", "self.jump", NUMBERS),
    (RELIABILITY + "stability.py", "start if start else", "", NUMBERS),
    (RELIABILITY + "stability.py", "np.sort(spreads)[:-1]", "np.sort(spreads)", NUMBERS),
    (RELIABILITY + "judge.py", 'if any(name.startswith("infinite/") for name in m):', "if False:", NUMBERS),
    (
        RELIABILITY + "edits.py",
        "_REASONING.search(text) or _OPENED_BEFORE.search(text)",
        "_REASONING.search(text)",
        NUMBERS,
    ),
    (RELIABILITY + "window.py", "if self._pending or len(totals) < A_STEP:", "if False:", NUMBERS),
    (RELIABILITY + "gold_trend.py", "and self.gold_change < -_FALL\n", "\n", NUMBERS),
    (RELIABILITY + "gold_trend.py", "self.proxy_sure > _SURE\n", "True\n", NUMBERS),
    (RELIABILITY + "gold_trend.py", "b * span / scale", "b * span", NUMBERS),
    (RELIABILITY + "gold_trend.py", "clip(usual / scale, ", "clip(0.0, ", NUMBERS),
    (RELIABILITY + "gold_trend.py", "and proxies[-1] - proxies[best] > _FALL * proxy_scale", "", NUMBERS),
    (RELIABILITY + "gold_trend.py", "(a * self.completions + b * other.completions) / count", "(a + b) / 2", NUMBERS),
    (RELIABILITY + "gold.py", "(KEPT, KEPT // 2, MANY)", "(KEPT,)", NUMBERS),
    (RELIABILITY + "gold.py", "_WIDTH = 5", "_WIDTH = 1", NUMBERS),
    (RELIABILITY + "gold.py", "self._width = kept[1].first - kept[0].first", "pass", NUMBERS),
    (RELIABILITY + "gold.py", "since_best(self.evaluations, FAR)", "[]", NUMBERS),
    (RELIABILITY + "gold.py", "found = found._replace(over=True)", "pass", NUMBERS),
    (RELIABILITY + "gold.py", "_standard(proxy) - _standard(gold)", "_standard(proxy) + _standard(gold)", NUMBERS),
    (RELIABILITY + "probes.py", "[::-1]\n", "\n", NUMBERS),
    (RELIABILITY + "probes.py", "again = score(call) if given is None else base", "again = base", HEARD + NUMBERS),
    (RELIABILITY + "probes.py", "signed=name in PAYS", "signed=True", NUMBERS),
    (RELIABILITY + "judge.py", "ramp(max(consistency), 0.02, 0.5)", "1.0", NUMBERS),
    (RELIABILITY + "judge.py", 'abs(m.get("correlation/length", 0.0))', "0.0", NUMBERS),
    (RELIABILITY + "judge.py", 'm.get("correlation/repetition", 0.0)]', "0.0]", NUMBERS),
    (RELIABILITY + "judge.py", "default=0.0) > 0.05", "default=0.0) > 9.0", NUMBERS),
    (RELIABILITY + "report.py", "(min(known) + sum(known) / len(known)) / 2", "1.0", NUMBERS),
    (RELIABILITY + "duplicates.py", "ramp(share / max(start, 1e-9), 0.8, 0.3)", "ramp(share, 0.8, 0.3)", NUMBERS),
    ("rewards/checking.py", "len(failures) / asked", "len(failures)", FAILURES),
    ("rewards/checking.py", "self._broken < _BROKEN_AFTER", "True", FAILURES),
    ("rewards/checking.py", "rewards[failure.row] = self.on_failure", "pass", FAILURES),
    ("rewards/results.py", "return number if -largest <= number <= largest else None", "return number", FAILURES),
    ("rewards/calls.py", "one if type(one) in _PLAIN else _copied(one) for", "one for", FAILURES),
    ("rewards/one_by_one.py", "self._in_vain < _IN_VAIN", "True", FAILURES),
    ("rewards/one_by_one.py", "_EACH if self._took_too_long else 1.0", "1.0", FAILURES),
    ("rewards/one_by_one.py", "self._hopeful = True", "pass", FAILURES),
    ("rewards/loading.py", "LARGEST / max(abs(weight), 1.0)", "LARGEST", LOADING),
    ("rewards/endpoint_batches.py", "error.status in _BY_ONE and not", "error.status is None and not", REMOTE),
    ("rewards/endpoint_batches.py", "if self._given_up and", "if False and", REMOTE),
    ("rewards/failures.py", "if self._left <= 0:", "if False:", FAILURES),
    ("rewards/time_limit.py", "            self.begin()\n            raise", "            raise", FAILURES),
    ("rewards/time_limit.py", "traceback.clear_frames(interruption.__traceback__)", "pass", FAILURES),
    ("rewards/json_schema.py", "min(left, _PATTERN_TIMEOUT)", "_PATTERN_TIMEOUT", SCHEMA),
    ("rewards/json_schema.py", "if id(found.contents) in seen:", "if len(seen) > 9:", SCHEMA),
    ("rewards/time_limit.py", "signal.raise_signal(signal.SIGALRM)", "pass", FAILURES),
    ("callbacks/_reward_source.py", "if trainer.model.training:", "if True:", HEARD),
    (
        "callbacks/_reward_source.py",
        "trainer._log_metric = trainer._log_completion_extra",
        "trainer._unused = trainer._unused_2",
        HEARD,
    ),
    ("checkpoints/moments.py", "between * between * share * self.finite", "0.0", MOMENTS),
    ("checkpoints/moments.py", "self.mean + between * share", "self.mean", MOMENTS),
    ("checkpoints/moments.py", "np.square(means - found.mean)) @", "0 * means) @", MOMENTS),
    ("checkpoints/moments.py", "at = i * kernels.PART", "at = 0", MOMENTS),
    ("checkpoints/moments.py", "+ start\n", "\n", MOMENTS),
    ("checkpoints/moments.py", "(whole.zeros_of_rows == width)", "(whole.zeros_of_rows == rows)", MOMENTS),
    ("checkpoints/moments.py", "if (np.square(means) > _FAR", "if False and (np.square(means) > _FAR", MOMENTS),
    ("checkpoints/moments.py", "-block.start % stride", "0", MOMENTS),
    ("checkpoints/drift.py", "(own**0.5 - reference**0.5) ** 2", "0", DRIFT),
    ("checkpoints/drift.py", "own * reference) ** 0.5)", "own * own) ** 0.5)", DRIFT),
    ("checkpoints/drift.py", "np.sign(own) * np.sign(before) < 0", "np.sign(own) != np.sign(before)", DRIFT),
    ("checkpoints/drift.py", "if not squares / _ALIKE**2 < reference", "if False and not squares < reference", DRIFT),
    ("checkpoints/kernels.py", "sums.append(beside.dot(beside))", "sums.append(own.dot(beside))", DRIFT),
    ("checkpoints/blocks.py", "start += size // width", "start += size", MOMENTS),
    ("checkpoints/blocks.py", "skip = max(skip - piece.size, 0)", "skip = 0", DRIFT),
    ("checkpoints/architecture.py", "if not is_converted and shape", "if shape", ARCHITECTURE),
    ("checkpoints/architecture.py", "return ignored or tied or", "return ignored or", ARCHITECTURE),
    ("checkpoints/architecture.py", "return layers <= _MOST_LAYERS and", "return", ARCHITECTURE),
    ("checkpoints/imports.py", 'if "." in name.name:', "if False:", SECURITY),
    ("checkpoints/health/resuming.py", "if any(one.nan for", "if not any(one.nan for", FAULTS),
    (
        "checkpoints/reader.py",
        "into = checkpoint.optimizer if checkpoint.tensors",
        "into = checkpoint.tensors if True",
        READER,
    ),
    ("functional/advantages.py", "rewards.reshape(1, -1)", "rewards.reshape(len(rewards), -1)", FUNCTIONAL),
    ("functional/advantages.py", "rewards - rewards.nanmean(1, keepdim=True)).nan_to", "rewards).nan_to", FUNCTIONAL),
    ("functional/advantages.py", "(count - 1).clamp(min=1)", "count.clamp(min=1)", FUNCTIONAL),
    (
        "functional/advantages.py",
        "torch.where(count > 1, advantages / (std",
        "torch.where(count > 0, advantages / (std",
        FUNCTIONAL,
    ),
    ("functional/advantages.py", "values * starts", "values * mask", FUNCTIONAL),
    ("functional/advantages.py", "advantages.gather(1, turn) * mask", "advantages.gather(1, turn)", FUNCTIONAL),
    ("functional/schedules.py", "min(floor, start)", "floor", SCHEDULES),
    ("functional/schedules.py", "decay**step, min", "decay * step, min", SCHEDULES),
    ("trainers/baselines.py", "self._sum / self._weight", "self._sum", BASELINES),
    (
        "trainers/baselines.py",
        "(~rewards.isnan()).sum(1, keepdim=True) == 1",
        "(~rewards.isnan()).sum(1, keepdim=True) == 9",
        BASELINES,
    ),
    ("trainers/baselines.py", "            if training:\n", "            if True:\n", BASELINES),
    ("trainers/greedy.py", "valid = actions.find(*padded).valid", "pass", BASELINES),
    ("trainers/json_actions.py", "bisect_left(places, stop, key=begin)", "len(ids)", ACTIONS),
    ("trainers/json_actions.py", "bisect_right(places, start, key=end)", "0", ACTIONS),
    ("trainers/greedy.py", "generation_config.do_sample = False", "generation_config.do_sample = True", BASELINES),
    ("trainers/kl_controller.py", "min(_CLIP, kl", "min(9.0, kl", FOLLOWING),
    ("trainers/kl_controller.py", "completions / self._horizon", "1 / self._horizon", FOLLOWING),
    ("trainers/reference.py", "1.0 - tau)", "tau)", FOLLOWING),
    ("trainers/reference.py", "% args.ref_update_interval == 0", "% args.ref_update_interval == 1", FOLLOWING),
    ("trainers/reference.py", "parameter.copy_(whole)", "whole", FOLLOWING),
    (LOO, "ends[min(turn, len(ends) - 1)]", "ends[-1]", BASELINES),
    (LOO, "self._kl.value * self._aggregated(kl, mask,", "self._aggregated(kl, mask,", FOLLOWING),
    (LOO, "self._kl.load_state_dict(state", "dict(state", FOLLOWING),
    (LOO, "self._baseline.load_state_dict(state", "dict(state", FOLLOWING),
    (PREFLIGHT + "alignment.py", "logits[len(prompt) - 1 : -1]", "logits[len(prompt) :]", PREFLIGHTS),
    (PREFLIGHT + "masks.py", "learns & ~expected", "learns & expected & ~expected", PREFLIGHTS),
    (PREFLIGHT + "masks.py", "expected & ~learns", "expected & ~expected", PREFLIGHTS),
    (PREFLIGHT + "masks.py", "bool(mask[:, -1].all())", "True", PREFLIGHTS),
    (PREFLIGHT + "masks.py", "(mask.int().diff(dim=1) >= 0).all()", "True", PREFLIGHTS),
    (PREFLIGHT + "labels.py", "(labels != ids) & trained", "(labels != ids) & ~trained", PREFLIGHTS),
    (PREFLIGHT + "reference.py", "abs(loss - math.log(2))", "abs(loss - loss)", PREFLIGHTS),
    (PREFLIGHT + "reference.py", "[*frozen, *model.parameters()]", "frozen", PREFLIGHTS),
    (PREFLIGHT + "advantages.py", "if j != i]].mean(1)", "]].mean(1)", PREFLIGHTS),
    (PREFLIGHT + "advantages.py", "known.max() == known.min()", "known.max() < known.min()", PREFLIGHTS),
    (PREFLIGHT + "gradient.py", "parameter.sub_(size", "parameter.add_(size", PREFLIGHTS),
    (PREFLIGHT + "gradient.py", "parameter.copy_(value)", "value", PREFLIGHTS),
    (PREFLIGHT + "gradient.py", "and not partner.detach().any()", "and False", PREFLIGHTS),
    (PREFLIGHT + "gradient.py", '("beta", "vf_coef", "entropy_decay")', '("beta", "entropy_decay")', PREFLIGHTS),
    (PREFLIGHT + "mini_run.py", "UPDATES * each", "UPDATES", PREFLIGHTS),
    (PREFLIGHT + "mini_run.py", "each * whole / 3600", "each * whole", PREFLIGHTS),
    (PREFLIGHT + "options.py", "warmup >= steps", "warmup > 9 * steps", PREFLIGHTS),
    (PREFLIGHT + "rewards.py", "value >= best", "value >= 9 * best", PREFLIGHTS),
    (PREFLIGHT + "tokens.py", "ids[:2] == [bos, bos]", "ids[:2] == [bos]", PREFLIGHTS),
    (PREFLIGHT + "dataset.py", "length + longest > positions", "length > positions", PREFLIGHTS),
]


def run(folder: Path, *options: str) -> list[str]:
    """The tests that turn red, of `folder`'s tests on `folder`'s package."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    if done.returncode == 2:  # KeyboardInterrupt in a test
        return ["interrupted"]
    return [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]


def survives(file: str, old: str, new: str, tests: list[str], known: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("trl_ext", "tests", "pyproject.toml"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        path = copy / "trl_ext" / file
        text = path.read_text(encoding="utf-8")
        if old not in text:
            raise SystemExit(f"{file}: {old!r} is gone: change tests/mutations.py with it.")
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        red = run(copy, "-x", *tests, *(f"--deselect={test}" for test in known))
    print("red     " if red else "SURVIVED", file, repr(old), (red or [""])[0].split("::")[-1][:90], flush=True)
    return not red


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word in m[0] or word in m[1] for word in words)]
    known = run(ROOT, *sorted({test for mutation in chosen for test in mutation[3]}))  # red already: they show nothing
    print(*(f"red without a mutation: {test}" for test in known), sep="\n", flush=True)
    survivors = [mutation for mutation in chosen if survives(*mutation, known)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations turned a test red")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
