"""Weights of a quantised model: several numbers in one, whose statistics are those of the stored form."""

from dataclasses import replace

from trl_ext.checkpoints.stored import StoredTensor

_OF_4_BITS = ".quant_state.bitsandbytes__"
_GPTQ = (".qweight", ".qzeros", ".weight_packed", ".weight_zero_point")


def with_forms(tensors: list[StoredTensor]) -> list[StoredTensor]:
    """The same, those that are packed marked as such: `nf4` and `fp4` (bitsandbytes, two to a byte), `int8`
    (bitsandbytes, with a scale for each row in `.SCB`), `packed` (GPTQ, AWQ, compressed-tensors)."""
    names = {tensor.name for tensor in tensors}
    of_4_bits = {name.split(_OF_4_BITS)[0]: name.split(_OF_4_BITS)[1] for name in names if _OF_4_BITS in name}
    found = []
    for tensor in tensors:
        form = None
        if tensor.name in of_4_bits:
            form = of_4_bits[tensor.name]
        elif tensor.dtype == "I8" and tensor.name.removesuffix("weight") + "SCB" in names:
            form = "int8"
        elif tensor.name.endswith(_GPTQ):
            form = "packed"
        found.append(tensor if form is None else replace(tensor, form=form))
    return found
