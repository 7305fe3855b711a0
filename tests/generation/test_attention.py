"""One decoded token's attention against the plain formula in float64."""

import pytest
import torch

from trl_ext import tiny
from trl_ext.generation.attention import ATTENTION, grouped_decode

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def by_hand(query, key, value, mask, scale):
    groups = query.shape[1] // key.shape[1]
    key, value = (t.double().repeat_interleave(groups, 1) for t in (key, value))
    scores = (query.double() @ key.transpose(2, 3) * scale).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "length", "dim"),
    [(4, 2, 37, 16), (14, 2, 64, 64), (3, 3, 65, 32), (8, 1, 320, 128), (4, 2, 70, 24)],
)
def test_it_is_attention_over_the_cache_with_each_head_repeated_for_its_group(
    heads, kv_heads, length, dim, dtype, device
):
    torch.manual_seed(0)
    query = torch.randn(5, heads, 1, dim, dtype=dtype, device=device)
    key, value = torch.randn(2, 5, kv_heads, length, dim, dtype=dtype, device=device)
    mask = torch.rand(5, 1, 1, length, device=device) < 0.4
    mask[0, ..., :] = False
    mask[:, ..., length // 2] = True
    given = grouped_decode(query, key, value, mask, 0.3)
    assert given.shape == (5, 1, heads, dim) and given.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(given.double(), by_hand(query, key, value, mask, 0.3), rtol=tolerance, atol=tolerance)


def test_a_model_with_it_generates_what_it_generates_with_sdpa():
    model, ids = tiny.load_policy().eval(), torch.tensor([[0, 0, 5, 9, 12], [3, 4, 5, 6, 7]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": "static", "pad_token_id": 0}
    wanted = model.generate(input_ids=ids, attention_mask=mask, **options)
    model.set_attn_implementation(ATTENTION)
    assert torch.equal(model.generate(input_ids=ids, attention_mask=mask, **options), wanted)
