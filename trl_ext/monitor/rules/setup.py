"""What the trainer's own options say, before a number is logged."""

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict


class TokenizerSetup(Rule):
    """The tokenizer is set up in a way that spoils generation or the end of answers.

    Sees: facts alone, at the first log. `padding_side="right"` in a trainer that generates from padded prompts (stock
    PPO takes the tokenizer as it is; TRL's other trainers pad by themselves); `pad_token` equal to `eos_token`.
    Matters: with padding on the right the model goes on after pad tokens, and masks are off; with one token for both,
    whatever masks padding masks the end of the answer, too, and the model never learns to stop.
    Source: Transformers' warning on right-padded generation; TRL's PPO and SFT docs. Default: right padding in PPO an
    error, one token for both a warning in PPO, where the score is taken before the first pad, and an `info` elsewhere.
    """

    name = "tokenizer_setup"
    at_start = True

    def check(self, row: Row) -> Finding | Verdict:
        side, same = self.facts.get("padding_side"), self.facts.get("pad_is_eos")
        if side is None and same is None:
            return Verdict.NO_DATA
        ppo = "eos_count" in row.metrics
        if side == "right" and ppo:
            return Finding(
                Severity.ERROR, "padding_side", float("nan"),
                "the tokenizer pads on the right, but PPO generates from padded prompts",
                "Set tokenizer.padding_side = 'left' (AutoTokenizer.from_pretrained(..., padding_side='left')) before "
                "the dataset is tokenized.",
            )  # fmt: skip
        if same:
            return Finding(
                Severity.WARNING if ppo else Severity.INFO, "pad_token", float("nan"),
                "pad_token is eos_token: what masks padding masks the end of an answer as well",
                "Add a token of its own: tokenizer.add_special_tokens({'pad_token': '<pad>'}) and "
                "model.resize_token_embeddings(len(tokenizer)), or use a reserved one that the model never writes.",
            )  # fmt: skip
        return Verdict.HEALTHY
