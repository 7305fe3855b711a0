"""Each layer is compiled in place, the model stays what it was; without a compiler of kernels (`eager`), which a CPU's
test need not have."""

import pytest
import torch
from trainer_builders import loo_trainer, policy, weights

from trl_ext import compile_layers

pytestmark = pytest.mark.current_trl  # of Transformers' models, whatever TRL trains them
IDS = torch.arange(3, 15).view(2, 6)


def test_each_layer_is_compiled_once_for_all_lengths_and_says_what_it_said(recwarn):
    torch._dynamo.reset()
    plain, compiled = policy(), policy()
    layers = len(plain.model.layers)
    made = []

    def counting(graph, inputs):
        made.append(graph)
        return graph.forward

    assert compile_layers(compiled, backend=counting) == layers and not made
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    for ids in (IDS, IDS[:, :4], IDS.repeat(2, 1)):
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, plain(ids).logits)
    assert len(made) == 1
    assert not [warning for warning in recwarn if "was compiled" in str(warning.message)]


def test_a_run_learns_what_it_did_without(tmp_path):
    plain = loo_trainer(tmp_path / "plain")
    compiled = loo_trainer(tmp_path / "compiled")
    compile_layers(compiled.model, backend="eager")
    learned = []
    for trainer in (plain, compiled):
        torch.manual_seed(5)
        trainer.train()
        learned.append(weights(trainer.model))
    for name, value in learned[0].items():
        torch.testing.assert_close(learned[1][name], value, rtol=1e-4, atol=1e-5)


def test_a_model_without_layers_is_told():
    with pytest.warns(UserWarning, match="Linear has no stack of layers of one kind: nothing was compiled"):
        assert compile_layers(torch.nn.Linear(2, 2)) == 0
