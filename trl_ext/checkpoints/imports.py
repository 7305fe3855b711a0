"""What loading a pickle would import: what every file of tensors needs, what may be anything, and what runs commands.

By lists of what is allowed: whatever else the standard library, torch or numpy offer may be a way to run code.
"""

import re
import sys

from trl_ext.checkpoints.pickled import Name
from trl_ext.monitor.alerts import Severity

_TENSORS = {
    f"torch._utils.{name}"
    for name in (
        "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
        "_rebuild_parameter_with_state", "_rebuild_qtensor", "_rebuild_sparse_tensor", "_rebuild_nested_tensor",
        "_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor",
        "_rebuild_meta_tensor_no_storage", "_rebuild_wrapper_subclass",
    )
} | {
    "torch._tensor._rebuild_from_type_v2", "torch.Size", "torch.device", "torch.Tensor", "torch.dtype", "torch.layout",
    "torch.serialization._get_layout", "torch.storage.UntypedStorage", "torch.storage.TypedStorage",
    "torch.nn.parameter.Parameter", "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.filesystem._StoragePrefix", "collections.OrderedDict", "builtins.set",
    "_codecs.encode",
}  # fmt: skip
_DTYPES = {
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "complex64", "complex128", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool",
}  # fmt: skip
_CLASSES_OF_TORCH = ("torch.distributed.tensor", "torch.distributed.checkpoint.metadata",
                     "torch.distributed.device_mesh", "torch.distributed._shard")  # fmt: skip
_OPTIONS_OF_TORCH = ("torch.distributed.fsdp", "torch.optim", "torch.amp", "torch.cuda.amp")
_PLAIN = {
    "collections": {"OrderedDict", "defaultdict", "deque", "Counter"}, "pathlib": {"PosixPath", "WindowsPath", "Path",
    "PurePosixPath", "PureWindowsPath"}, "datetime": {"datetime", "timedelta", "date", "timezone"},
    "builtins": {"set", "frozenset", "dict", "list", "tuple", "int", "float", "bool", "str", "bytes", "bytearray",
                 "slice", "complex", "range", "object"},
    "_codecs": {"encode"}, "copyreg": {"_reconstructor"}, "argparse": {"Namespace"}, "types": {"SimpleNamespace"},
    "decimal": {"Decimal"}, "fractions": {"Fraction"}, "uuid": {"UUID"}, "enum": {"Enum"},
    "deepspeed.utils.tensor_fragment": {"fragment_address"},
}  # fmt: skip
_NUMPY = {"_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer", "RandomState", "Generator"}
_OF_OPTIONS = re.compile(
    r"(Args|Arguments|Config|Strategy|State|States|Type|Plugin|Names|Name|Scaler|Enum|Kwargs|Mode|Backend|Policy|Stage|"
    r"Offload|Device|Metadata|Version|LR|Scheduler|Optimizer|Format|Level|Option|Options|Prefetch|Precision|Strategies|AdamW?|SGD)\d*$"
)
_ECOSYSTEM = {"transformers", "trl", "trl_ext", "peft", "accelerate", "datasets", "bitsandbytes", "deepspeed"}


def is_of_tensors(name: Name) -> bool:
    """Of what every file of tensors imports."""
    if str(name) in _TENSORS or (name.module == "torch" and (name.name in _DTYPES or _is_storage(name.name))):
        return True
    is_class = name.name.lstrip("_")[:1].isupper() and "." not in name.name
    return is_class and name.module.startswith(_CLASSES_OF_TORCH)


def _is_storage(name: str) -> bool:
    return name.endswith("Storage") and name.isidentifier()


def danger(name: Name, of_a_trainer: bool) -> Severity | None:
    """How bad it is that a file imports this; `None` for what does no harm.

    Args:
        of_a_trainer: whether objects of Transformers and its like are expected there.
    """
    root, is_class = name.module.split(".")[0], name.name.lstrip("_")[:1].isupper()
    if "." in name.name:  # reaches whatever the module has imported
        return Severity.CRITICAL
    if is_of_tensors(name) or name.name in _PLAIN.get(name.module, ()):
        return None
    if root == "numpy":
        return None if name.name in _NUMPY or (name.module == "numpy.dtypes" and is_class) else Severity.CRITICAL
    if root in sys.stdlib_module_names or (root == "torch" and not is_class) or not root:
        return Severity.CRITICAL
    if root == "torch" and not name.module.startswith((*_OPTIONS_OF_TORCH, "torch.nn.modules")):
        return Severity.CRITICAL  # some of its classes open files when they are made, or compile
    if of_a_trainer and is_class and (root in _ECOSYSTEM or name.module.startswith(_OPTIONS_OF_TORCH)):
        return None if _OF_OPTIONS.search(name.name) else Severity.WARNING
    return Severity.INFO if of_a_trainer and is_class and root != "torch" else Severity.WARNING
