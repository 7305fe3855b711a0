"""Episodes of several turns: TRL's own loop of tools, held to limits and kept from tools that misbehave."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from trl import GRPOTrainer

from ..errors import UserError
from .episode_limits import check_rollouts, count_turns, cut_by, cut_rollouts, policy_masks
from .process_statistics import global_means
from .tool_guard import REASONS, EpisodeEnd, ToolGuard

CUT_BY = ("tokens", "turns")


class EpisodeTrainer(GRPOTrainer):
    """GRPOTrainer whose episodes end at `max_episode_len` tokens, `max_episode_turns` turns, or with a tool that fails.

    Its only changes: what a `rollout_func` returns is cut at the limits; TRL's loop of tools runs with guarded tools
    and the limit of the episode in place of a turn's; reward functions find in `ended_by` what ended an episode.
    """

    environment_factories: Any
    rollout_func: Any
    max_completion_length: int
    _sync_tool_dicts: list[dict[str, Callable]]
    _async_tool_dicts: list[dict[str, Callable]]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._tool_guard: Any = None  # while TRL's loop of tools runs
        self._ended_by: list[str | None] | None = None
        if getattr(self, "environment_factories", None):
            factories = {name: _naming_reset(factory) for name, factory in self.environment_factories.items()}
            self.environment_factories = factories
            for pool in self._environment_pool.values():  # TRL has made one of each
                for environment in pool:
                    _name_reset(environment)

    def _generate_and_score_completions(self, inputs):
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # whatever tools and reward functions leave behind
            return super()._generate_and_score_completions(inputs)

    def _tokenize_prompts(self, prompts):
        result = super()._tokenize_prompts(prompts)
        for prompt, ids in zip(prompts, result[0], strict=False):
            if not len(ids):  # nothing to go on from: an error of indices, deep in Transformers
                raise UserError(f"the prompt {prompt!r} has no token: filter empty prompts out of the data set.")
        return result

    def _generate(self, prompts: list):
        mode, rollout_func = "train" if self.model.training else "eval", self.rollout_func
        limits = (self.args.max_episode_len, self.args.max_episode_turns)
        self._ended_by = None

        def limited(prompts, trainer):
            output = rollout_func(prompts, trainer)
            check_rollouts(output)
            if "completion_ids" not in output or limits == (None, None):  # TRL says what is missing
                return output
            self._ended_by = [cut_by(mask, *limits) for mask in policy_masks(output)]
            return cut_rollouts(output, *limits)

        if rollout_func is not None:
            self.rollout_func = limited
        try:
            with _parsing_never_ends_a_run(self._tokenizer):
                result = super()._generate(prompts)
        finally:
            self.rollout_func = rollout_func
        completion_ids, tool_mask, extra_fields = result[1], result[2], result[5]
        if self.tools or rollout_func is not None:
            masks = tool_mask if tool_mask is not None else [[1] * len(ids) for ids in completion_ids]
            turns = [count_turns(mask) for mask in masks]
            ended_by: list[str | None] = self._ended_by or [None] * len(turns)
            if self.tools:
                extra_fields["ended_by"] = ended_by
            self._log_episodes(mode, turns, completion_ids, ended_by)
        return result

    def _log_episodes(self, mode: str, turns: list[int], completion_ids: list, ended_by: list[str | None]):
        def column(values: list) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self.accelerator.device)

        metrics = {"episodes/turns": column(turns), "episodes/tokens": column([len(ids) for ids in completion_ids])}
        for limit in CUT_BY:
            metrics[f"episodes/cut_ratio/{limit}"] = column([end == limit for end in ended_by])
        if self.tools:
            for reason in REASONS:
                metrics[f"tools/ended/{reason}"] = column([end == reason for end in ended_by])
        pairs = [(values, torch.ones_like(values)) for values in metrics.values()]
        for name, value in zip(metrics, global_means(self.accelerator, pairs), strict=True):
            self._metrics[mode][name].append(value)

    # TRL's loop of tools ------------------------------------------------------------------------------------------

    def _tool_call_loop(self, prompts, prompt_ids, completion_ids, completions, *rest):
        with self._guarded_tools() as guard, self._limit_of_episode() as limit:
            result = super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *rest)
        tool_mask, completions, completion_ids, logprobs, calls, failures, images = result
        for i in range(len(completions)):
            if not tool_mask[i][-1] and not images[i]:
                _drop_last_answer(completions[i], tool_mask[i], completion_ids[i], logprobs[i] if logprobs else [])
        self._ended_by = [
            guard.ended.get(i) or self._limit_reached(limit, messages, ids, mask)
            for i, (messages, ids, mask) in enumerate(zip(completions, completion_ids, tool_mask, strict=True))
        ]
        return tool_mask, completions, completion_ids, logprobs, calls, failures + len(guard.ended), images

    def _limit_reached(self, limit: int, messages: list[dict], ids: list[int], mask: list[int]) -> str | None:
        if messages[-1].get("tool_calls"):  # nobody answered
            return "turns" if count_turns(mask) > self.max_tool_calling_iterations else "tokens"
        ends = getattr(self, "eos_token_ids", [self._tokenizer.eos_token_id])
        return "tokens" if len(ids) >= limit and ids[-1] not in ends else None

    @contextmanager
    def _guarded_tools(self):
        args, before = self.args, (self._sync_tool_dicts, self._async_tool_dicts)
        if self._tool_guard is None:
            self._tool_guard = ToolGuard(args.tool_timeout, args.max_tool_answer, args.tool_errors, self._is_vlm)
        guard = self._tool_guard
        guard.ended = {}
        self._sync_tool_dicts = [guard.plain(i, tools) for i, tools in enumerate(before[0])]
        self._async_tool_dicts = [guard.coroutines(i, tools) for i, tools in enumerate(before[1])]
        try:
            yield guard
        finally:
            self._sync_tool_dicts, self._async_tool_dicts = before

    @contextmanager
    def _limit_of_episode(self):
        """TRL holds the episode to the length of one completion; to the loss that stays the constant it divides by."""
        of_turn = self.max_completion_length
        self.max_completion_length = self.args.max_episode_len or of_turn
        try:
            yield self.max_completion_length
        finally:
            self.max_completion_length = of_turn

    def _get_tool_suffix_ids(self, tool_messages):
        if any(isinstance(message["content"], EpisodeEnd) for message in tool_messages):
            # too long for any episode: TRL then leaves it as it was before its tools were called
            return [self._tokenizer.pad_token_id] * (self.max_completion_length + 1)
        return super()._get_tool_suffix_ids(tool_messages)


def _drop_last_answer(messages: list[dict], policy: list[int], ids: list[int], logprobs: list[float]) -> None:
    """Of a tool, which nobody reads: it fills the episode to its last token. (TRL drops those that are longer.)"""
    end = len(policy) - policy[::-1].index(1)
    for values in (policy, ids, logprobs):
        del values[end:]
    while messages[-1]["role"] == "tool":
        messages.pop()


@contextmanager
def _parsing_never_ends_a_run(tokenizer: Any):
    """TRL takes a turn that cannot be parsed for plain text where the parser raises a ValueError; Transformers' raises
    others as well, such as a KeyError for a call without arguments, and what a policy writes must not end a run."""
    original, own = getattr(tokenizer, "parse_response", None), tokenizer.__dict__.get("parse_response")
    if original is None:
        yield
        return

    def parse_response(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except (ValueError, TypeError):
            raise
        except Exception as error:
            raise ValueError(f"no answer in the form of the template: {type(error).__name__}: {error}") from error

    tokenizer.parse_response = parse_response
    try:
        yield
    finally:
        if own is None:
            del tokenizer.parse_response
        else:
            tokenizer.parse_response = own


def _naming_reset(factory: Callable) -> Callable:
    def make():
        environment = factory()
        _name_reset(environment)
        return environment

    return make


def _name_reset(environment: Any):
    """Without a reset there is no prompt and no episode to end: the run ends, in a line that says where."""
    reset, name = environment.reset, type(environment).__name__

    def named(**row):
        try:
            return reset(**row)
        except Exception as error:
            raise UserError(
                f"{name}.reset failed with {type(error).__name__}: {error}. It must take any row of the dataset: mend "
                "it, or drop the rows that it cannot take."
            ) from error

    try:
        environment.reset = named
    except AttributeError:  # __slots__: its own error ends the run
        return
