"""Log-probability and entropy of tokens, from logits, with one buffer the size of the logits."""

import torch


class _TokenLogProbs(torch.autograd.Function):
    """Keeps the probabilities alone for the backward, which turns them into the gradient in place.

    Composed of torch's own functions this costs two to three times the memory and passes over (..., V), which at a
    vocabulary of 32,768 is most of the step on a CPU (`tests/benchmarks/bench_trainers.py`).
    """

    @staticmethod
    def forward(ctx, logits, targets):
        top, top_index = logits.max(-1, keepdim=True)
        probs = torch.softmax(logits, -1)
        logsumexp = top - probs.gather(-1, top_index).log()  # the largest probability is at least 1 / V: no underflow
        logps = (logits.gather(-1, targets.unsqueeze(-1)) - logsumexp).squeeze(-1)
        entropies = logsumexp.squeeze(-1) - torch.linalg.vecdot(probs, logits)
        ctx.save_for_backward(probs, targets, entropies)
        ctx.set_materialize_grads(False)  # an unused entropy then costs nothing in the backward
        return logps, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_logps, grad_entropies):
        probs, targets, entropies = ctx.saved_tensors
        entropy_grad = None
        if grad_entropies is not None:  # dH/dz = -p * (log p + H)
            entropy_grad = (torch.xlogy(probs, probs) + probs * entropies.unsqueeze(-1)).mul_(
                -grad_entropies.unsqueeze(-1)
            )
        if grad_logps is None:
            return entropy_grad, None
        grad = probs.mul_(-grad_logps.unsqueeze(-1))  # d logp/dz = onehot - p
        grad.scatter_add_(-1, targets.unsqueeze(-1), grad_logps.unsqueeze(-1))
        if entropy_grad is not None:
            grad += entropy_grad
        return grad, None


def token_log_probs(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """log softmax(logits / temperature)[targets], and the entropy of that distribution, in nats; both differentiable.

    `logits` is divided in place: hand over a tensor that nobody else reads. One backward only.

    Args:
        logits (`torch.Tensor` of shape `(B, T, V)`), targets (`torch.Tensor` of shape `(B, T)`, int64).
    Returns:
        log-probabilities and entropies, at least float32, both `(B, T)`.
    """
    assert logits.shape[:-1] == targets.shape, (logits.shape, targets.shape)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if temperature != 1.0:
        logits = logits.div_(temperature)
    return _TokenLogProbs.apply(logits, targets)
