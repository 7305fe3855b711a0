"""Log-probabilities of sampled tokens as the model that sampled had them, one number a token."""

import torch
from transformers import LogitsProcessor, StoppingCriteria


class ScoresRecord(LogitsProcessor):
    """Keeps the scores of the step, from which the next token is drawn; temperature and `top_k` come behind it."""

    def __init__(self) -> None:
        self.scores: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.scores = scores
        return scores


class SamplingRecord(StoppingCriteria):
    """Asked after each token, it stops nothing: it notes the token's log-probability, `(B,)` a step.

    Args:
        temperature: at which it is drawn, of the whole distribution, as a trainer scores it.
    """

    def __init__(self, temperature: float) -> None:
        self.processor, self.temperature = ScoresRecord(), temperature
        self.steps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs) -> torch.Tensor:
        assert self.processor.scores is not None
        given = self.processor.scores / self.temperature
        self.steps.append(given.gather(1, input_ids[:, -1:]).squeeze(1) - given.logsumexp(1))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def of(self, completion_ids: list[list[int]]) -> list[list[float]]:
        """Of the first rows and tokens, those of the completions."""
        table = torch.stack(self.steps, dim=1).float().tolist()
        return [row[: len(ids)] for row, ids in zip(table, completion_ids, strict=False)]


class IdleRows(StoppingCriteria):
    """Rows that only fill the batch are done from the start."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs) -> torch.Tensor:
        return torch.arange(len(input_ids), device=input_ids.device) >= self.rows
