"""Two processes of `test_twin.py`: a policy divided by FSDP2 as Accelerate divides it, and its twin; prints the largest
difference of the twin's logits from those of the whole policy: made after a forward that leaves the head gathered, and
refreshed after a step."""

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trl_ext import tiny
from trl_ext.generation.twin import Twin

IDS = torch.arange(97, 109).view(2, 6)


def whole_copy(policy, build):
    """The policy put together again by `full_tensor`, which the twin is not asked about; adapters merged by PEFT."""
    state = {
        name: weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        for name, weight in policy.state_dict().items()
    }
    again = build()
    again.load_state_dict(state)
    return again.merge_and_unload() if hasattr(again, "merge_and_unload") else again


def differences(kind: str, dtype: torch.dtype) -> list[float]:
    def build():
        model = tiny.random_policy().to(dtype)
        if kind == "lora":
            torch.manual_seed(1)
            model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
        return model

    policy = build()
    base = policy.get_base_model() if kind == "lora" else policy
    mesh = init_device_mesh("cpu", (2,))
    for layer in base.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard([base.model.norm, base.model.embed_tokens, base.lm_head], mesh=mesh, reshard_after_forward=False)
    fully_shard(policy, mesh=mesh)
    with torch.no_grad():
        policy(IDS)  # the head and the embeddings stay gathered, in memory that is freed later
    twin = Twin(policy, dtype)
    twin.refresh(policy)
    found = [apart(twin, whole_copy(policy, build))]
    optimizer = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.5)
    policy(IDS).logits.float().square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        policy(IDS)
    twin.refresh(policy)
    return [*found, apart(twin, whole_copy(policy, build))]


@torch.no_grad()
def apart(twin: Twin, whole) -> float:
    return (twin.model(IDS).logits - whole.eval()(IDS).logits).abs().max().item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for kind, dtype in (("plain", torch.float32), ("plain", torch.bfloat16), ("lora", torch.float32)):
        found = differences(kind, dtype)
        if dist.get_rank() == 0:
            print("differences", kind, *found, flush=True)
    dist.barrier()
    dist.destroy_process_group()
