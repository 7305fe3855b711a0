"""The schedule, against that of Transformers."""

import pytest
import torch
from transformers import get_scheduler

from trl_ext.monitor.rules.learning_rate import DECAYS, scheduled


@pytest.mark.parametrize("kind", sorted(DECAYS))
@pytest.mark.parametrize(("warmup", "steps"), [(0, 40), (10, 40), (1, 2)])
def test_a_schedule_is_that_of_transformers(kind, warmup, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-5)
    scheduler = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
    for step in range(steps + 1):
        assert scheduled(kind, 2e-5, warmup, steps, step) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        scheduler.step()
