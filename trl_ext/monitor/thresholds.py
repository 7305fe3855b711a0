"""Every number a rule compares with: name, default, unit and where it comes from. The one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.names import unknown_name


@dataclass(frozen=True)
class Threshold:
    """`name` is `<rule>.<limit>`."""

    name: str
    default: float
    unit: str
    source: str


_IN_A_ROW = "one odd batch is not a trend; the streak at which the healthy logs of the benchmark stay silent"
_KL = "TRL how_to_train (0.11), N implementation details of RLHF with PPO: healthy 0 to 10, target 6"
_KL_TOKEN = "healthy public GRPO logs stay below 0.1, one whose gradients exploded was at 2 to 3"
_ENTROPY = "arXiv 2505.22617: little is learnt below a fifth of the initial entropy"
_VALUE = "no published range, so factors of the run's own calmest stretch"
_RATIO = "N implementation details: reference run 0.74 to 1.23 for single tokens, so more than a mean should move"

THRESHOLDS: tuple[Threshold, ...] = (
    # numerics
    Threshold("nonfinite_metric.grad_norm_logs", 2, "logs in a row", "a healthy public log has one"),
    Threshold("nonfinite_metric.grad_norm_logs_fp16", 3, "logs in a row", "the loss scaler skips single overflows"),
    Threshold("loss_scale.share", 0.02, "of k ln 2",
              "an untouched policy is at ln 2 to four digits; bf16 adds a per cent"),
    Threshold("loss_scale.margin", 0.1, "implicit reward", "bf16 noise of a sum of log-probabilities, times beta"),
    Threshold("loss_scale.nats", 14, "nats",
              "ln of the largest vocabularies (256,000) is 12.5; above that no text lies"),
    Threshold("loss_scale.grad_norm", 50, "norm",
              "Transformers PR #35207 had 180 to 500; a healthy public log at 25 nats has 5"),
    Threshold("loss_scale.vocabulary_times", 1.2, "times ln(vocabulary)",
              "an untrained head is a little above ln(vocabulary)"),
    # setup
    Threshold("first_step_mismatch.per_token_warning", 0.1, "nats a token", "DESIGN; a healthy public log is at 0.087"),
    Threshold("first_step_mismatch.per_token_error", 0.3, "nats a token", "beyond any precision"),
    Threshold("first_step_mismatch.per_sequence_warning", 3, "nats a sequence",
              "a public PPO log in bf16 starts at 2.6"),
    Threshold("first_step_mismatch.per_sequence_error", 5, "nats a sequence", "beyond any precision"),
    Threshold("first_step_mismatch.implicit_reward", 0.3, "implicit reward",
              "exactly 0; bf16 noise is 2 nats at most, times beta"),
    # KL
    Threshold("kl_high.per_sequence_warning", 10, "nats a sequence", _KL),
    Threshold("kl_high.per_sequence_error", 30, "nats a sequence", "three times the band"),
    Threshold("kl_high.per_sequence_critical", 100, "nats a sequence", "ten times the band: another language"),
    Threshold("kl_high.per_token_warning", 0.5, "nats a token", _KL_TOKEN),
    Threshold("kl_high.per_token_error", 2, "nats a token", _KL_TOKEN),
    Threshold("kl_high.per_token_critical", 10, "nats a token", "as far as a random policy is from a language model"),
    Threshold("kl_high.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("kl_spike.per_sequence_floor", 20, "nats a sequence", "twice the band: one log of up to that is weather"),
    Threshold("kl_spike.per_token_floor", 3, "nats a token",
              "healthy public logs of few completions have single logs of 1 to 2.6"),
    Threshold("kl_spike.times", 5, "times the median", "a factor, since the first logs have no noise to compare with"),
    Threshold("kl_spike.min_z", 8, "robust standard deviations", "batch means of KL are heavy-tailed"),
    Threshold("kl_runaway.per_sequence_floor", 10, "nats a sequence", "healthy runs accelerate up to there"),
    Threshold("kl_runaway.per_token_floor", 0.5, "nats a token", "healthy runs accelerate up to there"),
    Threshold("kl_runaway.stretch", 8, "logs", "three stretches show an acceleration, eight logs average the noise"),
    Threshold("kl_runaway.times", 2, "times the first stretch", "doubled within 16 logs"),
    Threshold("kl_runaway.acceleration", 1.2, "times the rise before", "a straight line has 1"),
    Threshold("kl_runaway.noise", 0.1, "of the level", "a rise below it is the noise of a median"),
    Threshold("kl_runaway.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("kl_negative.info", 0.05, "nats a sequence below 0",
              "rounding of a policy that has not moved is smaller"),
    Threshold("kl_negative.warning", 1, "nats a sequence below 0", "DESIGN"),
    Threshold("kl_negative.error", 5, "nats a sequence below 0", "DESIGN"),
    Threshold("kl_negative.critical", 50, "nats a sequence below 0", "DESIGN"),
    Threshold("kl_negative.token_share", 0.1, "of the limits for a sequence",
              "k3 per token cannot be negative but by rounding"),
    Threshold("kl_negative.logs", 3, "logs in a row", _IN_A_ROW),
    # the size of an update
    Threshold("approx_kl_spike.warning", 0.1, "nats a token", "TRL_FACTS: healthy below 0.1"),
    Threshold("approx_kl_spike.error", 0.2, "nats a token", "trl#238: 0.2 preceded instability"),
    Threshold("approx_kl_spike.error_at_once", 1, "nats a token", "twice where RL4LMs stops"),
    Threshold("approx_kl_spike.warning_logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("approx_kl_spike.error_logs", 5, "logs in a row", _IN_A_ROW),
    Threshold("clip_fraction_high.warning", 0.3, "of the tokens",
              "N implementation details: 0.02 is aggressive already"),
    Threshold("clip_fraction_high.error", 0.6, "of the tokens", "most of a batch teaches nothing"),
    Threshold("clip_fraction_high.logs", 5, "logs in a row", _IN_A_ROW),
    Threshold("ratio_out_of_band.warning_low", 0.8, "mean ratio", _RATIO),
    Threshold("ratio_out_of_band.warning_high", 1.25, "mean ratio", _RATIO),
    Threshold("ratio_out_of_band.error_low", 0.5, "mean ratio", "TRL PPO docs: 2 and 0.1 are wrong"),
    Threshold("ratio_out_of_band.error_high", 2, "mean ratio", "TRL PPO docs: 2 and 0.1 are wrong"),
    Threshold("ratio_out_of_band.critical_low", 0.1, "mean ratio", "TRL PPO docs: 2 and 0.1 are wrong"),
    Threshold("ratio_out_of_band.critical_high", 10, "mean ratio", "trl#1031: TRL itself skipped such a batch"),
    Threshold("ratio_out_of_band.logs", 2, "logs in a row", _IN_A_ROW),
    # entropy
    Threshold("entropy_collapse.warning_fraction", 0.2, "of the start", _ENTROPY),
    Threshold("entropy_collapse.error_fraction", 0.05, "of the start", "the policy repeats itself"),
    Threshold("entropy_collapse.start_logs", 3, "logs", "few: a collapse may begin at once; a late start hides it"),
    Threshold("entropy_collapse.logs", 5, "logs in a row", _IN_A_ROW),
    Threshold("entropy_explosion.warning_times", 2, "times the start", "DESIGN"),
    Threshold("entropy_explosion.error_times", 3, "times the start", "DESIGN"),
    Threshold("entropy_explosion.warning_nats", 1, "nats a token", "rllm#116: healthy below 1"),
    Threshold("entropy_explosion.error_nats", 2, "nats a token", "rllm#116: 2 and rising"),
    Threshold("entropy_explosion.start_logs", 3, "logs", "as for a collapse"),
    Threshold("entropy_explosion.warning_logs", 10, "logs in a row",
              "exploration after a change of prompts passes sooner"),
    Threshold("entropy_explosion.error_logs", 5, "logs in a row", "as far as that no exploration goes"),
    # reward
    Threshold("reward_drop.deviations", 2.5, "standard deviations of a log",
              "seven of the difference of two such means"),
    Threshold("reward_drop.shorter_deviations", 3, "standard deviations of a log",
              "the same for means of half as many"),
    Threshold("reward_drop.longer_deviations", 1.7, "standard deviations of a log",
              "the same for means of twice as many"),
    Threshold("reward_drop.wobbles", 4, "standard deviations of the change between means of sixteen",
              "the range of most slow wobbles; 1.4 of a log's where logs are independent"),
    Threshold("reward_drop.share", 0.5, "of the gain", "less than half given back is a plateau"),
    Threshold("reward_drop.early_error", 5, "standard deviations of a log", "before the wobble is known"),
    Threshold("reward_drop.again", 1.25, "times the last drop", "a reward that swings is told once"),
    Threshold("reward_drop.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("reward_flat_kl_rising.per_sequence", 10, "nats a sequence", _KL),
    Threshold("reward_flat_kl_rising.per_token", 0.5, "nats a token", _KL_TOKEN),
    Threshold("reward_flat_kl_rising.times", 1.5, "times the first logs",
              "a KL that was high from the start is kl_high alone"),
    Threshold("reward_flat_kl_rising.logs", 3, "logs", "the shortest median; the report it comes from has six logs"),
    Threshold("reward_saturated.share", 0.05, "of the start", "a twentieth of the spread: a twentieth of the gradient"),
    Threshold("reward_saturated.start_logs", 8, "logs", "a first level"),
    Threshold("reward_saturated.logs", 10, "logs in a row", _IN_A_ROW),
    Threshold("reward_flat.logs", 96, "logs", "sixteen blocks of six or more; shorter runs cannot tell"),
    Threshold("reward_flat.every", 16, "logs", "how often it is judged"),
    Threshold("reward_flat.min_z", 2, "standard deviations", "Mann-Kendall, 2% one-sided"),
    Threshold("reward_failures.warning", 0.02, "of the completions", "one in fifty"),
    Threshold("reward_failures.error", 0.5, "of the completions", "the other half is what is learnt from"),
    Threshold("reward_failures.critical", 0.99, "of the completions", "nothing is learnt"),
    Threshold("reward_failures.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("dead_reward_component.warning_logs", 96, "logs in a row", "a hard reward may take a while to be earned"),
    Threshold("dead_reward_component.times", 3, "times its longest rest before", "a sparse reward rests, too"),
    Threshold("dead_reward_component.logs", 10, "logs in a row", "unsloth#2291 has eleven"),
    Threshold("component_dominance.start_logs", 10, "logs", "a first level"),
    Threshold("component_dominance.length_times", 1.5, "times the start", "length has changed by more than its noise"),
    Threshold("component_dominance.logs", 5, "logs in a row", _IN_A_ROW),
    Threshold("reward_hacking_suspected.start_logs", 8, "logs", "a first level"),
    Threshold("reward_hacking_suspected.rise", 0.1, "of the first reward", "the reward clearly rose"),
    Threshold("reward_hacking_suspected.drop", 0.15, "of the first value", "more than a held-back set varies by"),
    Threshold("reward_hacking_suspected.drop_at_once", 0.4, "of the first value", "nearly half is no noise"),
    Threshold("reward_hacking_suspected.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("reward_hacking_suspected.length_moved", 1.33, "times the start", "a third"),
    Threshold("reward_hacking_suspected.length_times", 2, "times the start", "doubled or halved"),
    Threshold("reward_hacking_suspected.correlation", 0.8, "of the changes", "64% of the reward's noise is length"),
    Threshold("reward_hacking_suspected.per_sequence", 10, "nats a sequence", _KL),
    Threshold("reward_hacking_suspected.per_token", 0.5, "nats a token", _KL_TOKEN),
    # groups
    Threshold("zero_signal.error", 0.95, "of the groups", "DESIGN"),
    Threshold("zero_signal.error_logs", 3, "logs in a row", "DESIGN"),
    Threshold("zero_signal.warning", 0.5, "of the groups", "DESIGN"),
    Threshold("zero_signal.error_groups", 24, "groups", "three logs of eight"),
    Threshold("zero_signal.chance", 1e-4, "probability",
              "of the streak, if groups lose their spread as often as before"),
    Threshold("zero_signal.warning_logs", 20, "logs", "their mean: hard batches are no trend"),
    Threshold("frozen_policy.gradient_logs", 2, "logs in a row", "ms-swift#5890; exactly 0 is never chance"),
    Threshold("frozen_policy.gradient_logs_later", 20, "logs in a row",
              "a nearly solved public run has stretches of eight"),
    Threshold("frozen_policy.loss", 1e-3, "loss", "below it a gradient may underflow"),
    Threshold("frozen_policy.kl_per_token", 1e-8, "nats a token", "rounding of two equal forward passes"),
    Threshold("frozen_policy.kl_per_sequence", 1e-5, "nats a sequence",
              "the same, summed: a frozen PPO run shows up to 2e-6"),
    Threshold("frozen_policy.kl_logs", 10, "logs in a row", "a few updates can vanish in bf16"),
    Threshold("frozen_policy.margin_logs", 3, "logs in a row", "without gradients; the first one is always 0"),
    Threshold("frozen_policy.margin_logs_rounded", 10, "logs in a row", "printed logs of a warm-up show four zeros"),
    Threshold("frozen_policy.update_share", 1e-3, "of the first updates' KL", "a schedule's tail is left out"),
    Threshold("frozen_policy.smallest_update", 1e-9, "nats a token", "rounding of two equal forward passes is 1e-13"),
    Threshold("frozen_policy.rate_share", 0.1, "of the largest learning rate", "the KL falls with its square"),
    Threshold("frozen_policy.update_logs", 10, "logs in a row", "a few updates can vanish in bf16"),
    Threshold("frozen_policy.evaluations", 3, "evaluations", "to the last digit"),
    # lengths
    Threshold("all_truncated.share", 0.95, "of the completions", "DESIGN"),
    Threshold("all_truncated.logs", 3, "logs in a row", "a healthy public log has one"),
    Threshold("all_truncated.few", 0.3, "of the completions", "a run that did not begin with a limit too low"),
    Threshold("all_truncated.most", 0.7, "of the completions", "most of what is scored has no end"),
    Threshold("all_truncated.chance", 1e-4, "probability",
              "of the streak, if completions are cut off as often as before"),
    Threshold("all_truncated.error_logs", 8, "logs in a row", "some models begin there and learn to be brief"),
    Threshold("all_truncated.same_length_logs", 10, "logs in a row", "a mean over a batch is not whole by chance"),
    Threshold("all_truncated.same_length_error_logs", 25, "logs in a row",
              "short answers to one prompt a log do not last"),
    Threshold("eos_missing.logs", 3, "logs in a row", "DESIGN"),
    Threshold("length_collapse.tokens", 5, "tokens", "DESIGN"),
    Threshold("length_collapse.start_logs", 3, "logs", "a collapse may begin at once"),
    Threshold("length_collapse.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("length_drift.up", 3, "times the start", "DESIGN"),
    Threshold("length_drift.down", 0.3, "times the start", "DESIGN"),
    Threshold("length_drift.start_logs", 10, "logs", "a first level"),
    Threshold("length_drift.logs", 10, "logs in a row", _IN_A_ROW),
    # value function
    Threshold("value_loss_weight.warning", 5, "vf_coef", "TRL has 0.1, other PPOs 0.5 to 1"),
    Threshold("value_loss_divergence.warning_growth", 10, "times the calmest level", _VALUE),
    Threshold("value_loss_divergence.error_growth", 100, "times the calmest level", _VALUE),
    Threshold("value_loss_divergence.min_z", 4, "robust standard deviations of the log", "6e-5 two-sided for noise"),
    Threshold("value_loss_divergence.start_logs", 5, "logs", "the critic starts from a random head and needs a moment"),
    Threshold("value_loss_divergence.reward_share", 0.1, "of the reward variance",
              "a value loss below it is no trouble"),
    Threshold("value_loss_divergence.start_share", 0.1, "of the start",
              "nor is one below a tenth of the untrained critic's"),
    Threshold("value_loss_divergence.smallest_noise", 0.05, "of the log",
              "or a constant history makes all changes unlikely"),
    Threshold("value_loss_divergence.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("value_explained_variance.warning", -0.1, "explained variance", "clearly worse than a constant"),
    Threshold("value_explained_variance.error", -2, "explained variance", "three times the variance of the returns"),
    Threshold("value_explained_variance.logs", 20, "logs in a row", "an untrained head begins there"),
    # gradients
    Threshold("grad_norm_spike.times", 30, "times the median", "a healthy public DPO log has 25"),
    Threshold("grad_norm_spike.times_at_once", 1000, "times the median", "no weather"),
    Threshold("grad_norm_spike.per_sequence", 10, "nats a sequence", _KL),
    Threshold("grad_norm_spike.per_token", 0.5, "nats a token", _KL_TOKEN),
    Threshold("grad_norm_spike.min_z", 6, "robust standard deviations of the log", "heavy tails"),
    Threshold("grad_norm_spike.history", 16, "logs", "a median and a scale"),
    Threshold("grad_norm_spike.hits", 3, "logs within an eighth of a window", "once is weather"),
    Threshold("grad_norm_spike.large_times", 100, "times the median", "four times a healthy log's largest"),
    Threshold("grad_norm_spike.large_hits", 4, "logs within half a window", "they recur"),
    Threshold("grad_norm_trend.stretch", 16, "logs", "a median of 16"),
    Threshold("grad_norm_trend.start_logs", 16, "logs", "in which the calmest stretch is looked for"),
    Threshold("grad_norm_trend.smallest", 1e-6, "norm", "a batch without signal has practically 0"),
    Threshold("grad_norm_trend.warning", 20, "times the start", "a public GRPO log had 50 before it broke"),
    Threshold("grad_norm_trend.error", 200, "times the start", "ten times that"),
    Threshold("grad_norm_trend.per_sequence", 10, "nats a sequence", _KL),
    Threshold("grad_norm_trend.per_token", 0.5, "nats a token", _KL_TOKEN),
    Threshold("grad_norm_trend.min_z", 3, "robust standard deviations of the log",
              "batches without signal spread widely"),
    Threshold("grad_norm_trend.logs", 8, "logs in a row", _IN_A_ROW),
    # learning rate
    Threshold("lr_schedule_drift.warning", 0.1, "of the peak",
              "more than rounding of warmup_ratio or of steps an epoch"),
    Threshold("lr_schedule_drift.error", 0.5, "of the peak", "another schedule altogether"),
    Threshold("lr_schedule_drift.leap", 20, "times the largest before", "a warm-up doubles at most"),
    Threshold("lr_schedule_drift.leap_error", 200, "times the largest before", "no second stage has that"),
    Threshold("lr_schedule_drift.leap_logs", 10, "logs", "then it is the learning rate of this run"),
    Threshold("lr_schedule_drift.leap_after", 10, "logs above 0", "past the first logs of a warm-up"),
    Threshold("lr_schedule_drift.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("lr_zero_early.warning_logs", 3, "logs in a row", "warm-up and the end of a schedule show one each"),
    Threshold("lr_zero_early.error_logs", 10, "logs in a row", _IN_A_ROW),
    # preference pairs
    Threshold("preference_displacement.reward", 1, "implicit reward", "beyond the noise of a batch"),
    Threshold("preference_displacement.warning_times", 3, "times the log-probability at the start",
              "honest runs end below twice"),
    Threshold("preference_displacement.error_times", 6, "times the log-probability at the start",
              "no text of use is left"),
    Threshold("preference_displacement.first_logs", 3, "logs", "batches of few pairs vary by half"),
    Threshold("preference_displacement.worse_logs", 4, "logs in a row", _IN_A_ROW),
    Threshold("preference_identical.logs", 3, "logs in a row", "exactly the same is never chance"),
    Threshold("preference_displacement.logs", 2, "logs in a row", _IN_A_ROW),
    Threshold("preference_magnitude.reward", 3, "implicit reward", "30 nats at beta=0.1"),
    Threshold("preference_magnitude.error_loss", 4, "times ln 2", "far worse than an untouched policy"),
    Threshold("preference_magnitude.margin", 20, "implicit reward", "the loss of a pair is 2e-9; healthy public logs "
              "stay below 10"),
    Threshold("preference_magnitude.logs", 5, "logs", "trl#1236 has five"),
    Threshold("preference_magnitude.mismatch_logs", 10, "logs",
              "losses of ten logs average the noise of small batches"),
    Threshold("preference_magnitude.mismatch_loss", 1.15, "times ln 2",
              "public logs with another reference: 1.2 to 1.4"),
    Threshold("preference_magnitude.mismatch_reward", 0.3, "implicit reward",
              "3 nats at beta=0.1: the policy has moved"),
    Threshold("preference_magnitude.mismatch_accuracy", 0.6, "of the pairs", "about chance"),
    Threshold("preference_no_movement.logs", 100, "logs", "longer than a warm-up"),
    Threshold("preference_no_movement.still_logs", 10, "logs", "past the warm-up"),
    Threshold("preference_no_movement.still_margin", 0.001, "implicit reward", "a hundredth of a nat at beta=0.1"),
    Threshold("preference_no_movement.margin", 0.02, "implicit reward", "0.2 nats at beta=0.1"),
    Threshold("preference_no_movement.loss_share", 0.01, "of ln 2", "as untouched"),
    Threshold("preference_chance.logs", 100, "logs", "longer than a warm-up"),
    Threshold("preference_chance.lost_logs", 20, "logs", "their mean varies by 0.04 with eight pairs a log"),
    Threshold("preference_chance.lost_distance", 0.15, "of accuracy", "clearly above chance before"),
    Threshold("preference_chance.error_of_mean", 0.04, "of accuracy", "as far as the mean may be from one half"),
    Threshold("preference_chance.lost_error", 0.025, "of accuracy", "the best of many means is lucky"),
    Threshold("preference_chance.coin_logs", 40, "logs", "past the warm-up, in which a reward model learns most"),
    Threshold("preference_chance.coin_loss", 0.97, "of ln 2", "who tells two of three pairs apart is at 0.92"),
    Threshold("preference_chance.min_z", 2, "standard deviations", "of an accuracy that rises slowly (Mann-Kendall)"),
    Threshold("preference_chance.distance", 0.04, "of accuracy",
              "two standard deviations of 64 batches of eight pairs"),
    # reward models
    Threshold("reward_model_scale.size", 10, "score", "past 8 the loss of a pair is 0 or the margin"),
    Threshold("reward_model_scale.largest", 100, "score", "trl#937"),
    Threshold("reward_model_scale.times", 3, "times the first log", "a new head may begin large"),
    Threshold("reward_model_scale.error_loss", 4, "times ln 2", "far worse than a coin"),
    Threshold("reward_model_scale.logs", 5, "logs", "losses of five logs average the noise of small batches"),
    Threshold("reward_model_scale.offset", 20, "score", "bf16 has steps of 0.125 there"),
    Threshold("reward_model_scale.margin_times", 5, "times the margin", "the common part dwarfs what was learnt"),
    Threshold("reward_model_scale.offset_logs", 8, "logs", _IN_A_ROW),
    # supervised
    Threshold("early_divergence.times", 3, "times the first log", "losses of single texts differ by less, four times "
              "in a row"),
    Threshold("early_divergence.nats", 2, "nats above the first log", "small losses vary by factors"),
    Threshold("early_divergence.first_logs", 32, "logs", "later loss_divergence has a history"),
    Threshold("early_divergence.above_entropy", 4, "nats", "text of another domain costs 1 to 2 more than the entropy"),
    Threshold("early_divergence.logs", 4, "logs in a row", _IN_A_ROW),
    Threshold("no_supervised_tokens.logs", 2, "logs in a row", "three numbers exactly 0 are never chance"),
    Threshold("no_supervised_tokens.loss_only_logs", 10, "logs in a row",
              "older Transformers round the loss to 4 digits"),
    Threshold("loss_divergence.warning_growth", 1.5, "times the best", "more than a new epoch or data source adds"),
    Threshold("loss_divergence.error_growth", 3, "times the best", "the model is lost"),
    Threshold("loss_divergence.deviations", 3, "standard deviations of a log", "medians of 8 vary by 0.4 of them"),
    Threshold("loss_divergence.smallest_noise", 0.05, "of the loss", "a smoothed loss would be too calm"),
    Threshold("loss_divergence.smallest", 0.2, "nats", "below it factors mean nothing"),
    Threshold("loss_divergence.start_logs", 3, "logs", "a divergence may begin at once"),
    Threshold("loss_divergence.logs", 5, "logs in a row", _IN_A_ROW),
    Threshold("loss_flat.logs", 48, "logs", "sixteen blocks of three or more; shorter runs cannot tell"),
    Threshold("loss_flat.every", 16, "logs", "how often it is judged"),
    Threshold("loss_flat.min_z", 2, "standard deviations", "Mann-Kendall, 2% one-sided"),
    Threshold("loss_flat.smallest", 0.2, "nats", "there is little left to fall"),
    Threshold("overfitting.rise", 0.05, "of the lowest evaluation loss", "evaluation losses repeat to about 1%"),
    Threshold("overfitting.evaluations", 2, "evaluations in a row", _IN_A_ROW),
    Threshold("overfitting.loss", 0.1, "nats", "nine of ten tokens are certain"),
    Threshold("overfitting.start_share", 0.2, "of the start", "easy data starts low"),
    Threshold("overfitting.start_logs", 3, "logs", "a first level"),
    Threshold("overfitting.epochs", 2, "epochs", "an easy task is low in its second one already"),
    Threshold("overfitting.logs", 5, "logs in a row", _IN_A_ROW),
    # sampling engine
    Threshold("sampling_mismatch.warning", 0.8, "mean ratio", "trl#4772"),
    Threshold("sampling_mismatch.error", 0.5, "mean ratio", "trl PR #5815"),
    Threshold("sampling_mismatch.logs", 2, "logs in a row", _IN_A_ROW),
    Threshold("sampling_mismatch.times", 5, "times the start", "growth against its own start"),
    Threshold("sampling_mismatch.difference", 0.05, "nats a token", "bf16 engines differ by 0.01 to 0.02"),
    Threshold("sampling_mismatch.difference_logs", 10, "logs in a row", _IN_A_ROW),
    # resume
    Threshold("resume_discontinuity.logs", 3, "logs", "after the resume that are judged"),
    Threshold("resume_discontinuity.times", 3, "times the highest, or part of the level", "alpaca-lora#72 had ten"),
    Threshold("resume_discontinuity.loss_times", 1.5, "times the highest before", "DPO: 0.3 to log 2"),
    Threshold("resume_discontinuity.loss_floor", 0.02, "from the level before", "a loss near 0 varies by factors"),
    Threshold("resume_discontinuity.min_z", 6, "robust standard deviations of such ratios", "outside the noise"),
    Threshold("resume_discontinuity.largest", 2, "times the largest ratio so far", "heavy tails; a KL that grows"),
    Threshold("resume_discontinuity.per_sequence_floor", 1, "nats from the level before", "a young run's KL grows"),
    Threshold("resume_discontinuity.per_token_floor", 0.1, "nats from the level before", "a young run's KL grows"),
    Threshold("resume_discontinuity.epoch_share", 0.02, "of the epoch", "the rounding of a logged epoch"),
    # resources
    Threshold("memory_growth.logs", 128, "logs", "caches fill for a while"),
    Threshold("memory_growth.growth", 0.02, "of the level", "unsloth#2470: 11% in 650 steps"),
    Threshold("memory_growth.process_growth", 0.1, "of the level", "data that is mapped into memory counts as well"),
    Threshold("memory_growth.leak_blocks", 7, "rises in a row", "to a new maximum each; chance has 1 of 5,000"),
    Threshold("memory_growth.leak_growth", 0.05, "of the level", "more than an allocator's rounding"),
    Threshold("memory_growth.quiet_blocks", 8, "means of four logs without a maximum", "it has stopped"),
    Threshold("memory_growth.again", 1.1, "times the level last told", "what fills in steps is told once"),
    Threshold("memory_growth.rising_share", 0.9, "of the blocks", "steady, not a step"),
    Threshold("step_time_drift.stretch", 16, "logs", "a median of 16"),
    Threshold("step_time_drift.smallest", 1e-6, "seconds", "no step is shorter"),
    Threshold("step_time_drift.times", 2.5, "times the start", "shared machines vary by two"),
    Threshold("step_time_drift.logs", 10, "logs in a row", _IN_A_ROW),
)  # fmt: skip

_LARGEST = 1e100


def resolve_thresholds(*overrides: Mapping[str, Any] | None) -> dict[str, dict[str, float]]:
    """The limits of each rule: the defaults, changed by `overrides`, the later ones last.

    Args:
        overrides: `{"kl_high.logs": 5}` or, as YAML reads better, `{"kl_high": {"logs": 5}}`.
    Raises:
        UserError: no such threshold, or its value is not a finite number.
    """
    flat = {threshold.name: threshold.default for threshold in THRESHOLDS}
    counts = {threshold.name for threshold in THRESHOLDS if threshold.unit.startswith("logs")}
    for name, value in chain.from_iterable(_flatten(changes or {}) for changes in overrides):
        if name not in flat:
            raise unknown_name("threshold", name, flat)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
            raise UserError(f"threshold {name!r} must be a finite number, not {value!r:.60} (default {flat[name]:g})")
        if name in counts and (value < 1 or value != int(value)):
            raise UserError(f"threshold {name!r} counts logs: a whole number of at least 1, not {value!r}")
        if value < 0 <= flat[name]:
            raise UserError(f"threshold {name!r} must not be below 0: {value:g} (default {flat[name]:g})")
        flat[name] = value
    limits: dict[str, dict[str, float]] = {}
    for name, value in flat.items():
        rule, limit = name.split(".", 1)
        limits.setdefault(rule, {})[limit] = value
    return limits


def _flatten(overrides: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(overrides, Mapping):
        raise UserError(f"thresholds must be a mapping such as {{'kl_high.logs': 5}}, not {overrides!r}")
    flat: list[tuple[str, Any]] = []
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            flat += [(f"{name}.{limit}", inner) for limit, inner in value.items()]
        else:
            flat.append((str(name), value))
    return flat
