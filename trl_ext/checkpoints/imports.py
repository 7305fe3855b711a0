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
    "torch.Generator", "torch._C.Generator",
    "torch.nn.parameter.Parameter", "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.filesystem._StoragePrefix", "collections.OrderedDict", "builtins.set",
    "_codecs.encode",
}  # fmt: skip
_DTYPES = {
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32", "complex64", "complex128", "qint8", "quint8", "qint32",
    "quint4x2", "quint2x4", "bits8", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool",
    "per_tensor_affine", "per_channel_affine", "per_channel_affine_float_qparams", "strided", "sparse_coo",
    "sparse_csr", "contiguous_format", "preserve_format", "channels_last",
}  # fmt: skip
# Of distributed checkpoints
_DISTRIBUTED = re.compile(
    r"torch\.distributed\.("
    r"checkpoint\.metadata\.(Metadata|TensorStorageMetadata|BytesStorageMetadata|TensorProperties|ChunkStorageMetadata"
    r"|MetadataIndex|StorageMeta|_MEM_FORMAT_ENCODING)"
    r"|checkpoint\.(filesystem|hf_storage|_hf_utils)\.(_StorageInfo|_StoragePrefix|_HFStorageInfo)"
    r"|tensor(\._api)?\.DTensor|tensor\._dtensor_spec\.(DTensorSpec|TensorMeta)"
    r"|tensor\.placement_types\.(Shard|Replicate|Partial|_StridedShard)|device_mesh\.DeviceMesh"
    r"|_shard\.(sharded_tensor\.)?(api\.|metadata\.|shard\.)?(ShardedTensor|ShardedTensorMetadata|TensorProperties|Shard"
    r"|ShardMetadata)|_shard\.sharding_spec\.(api\.|chunk_sharding_spec\.)?(EnumerableShardingSpec|ChunkShardingSpec)"
    r"|remote_device\._remote_device)"
)
_MAKES_CODE = re.compile(r"(^|[._])(dill|cloudpickle|joblib|torch_package_importer)($|\.)")  # functions of any bytes
# Of what trainers keep of their options and states. By module and name, since modules re-export what others define
_OF_TRAINERS = re.compile(
    r"transformers\.training_args(_seq2seq)?\.(Seq2Seq)?(TrainingArguments|OptimizerNames|ParallelMode)"
    r"|transformers\.trainer_utils\.(IntervalStrategy|SaveStrategy|EvaluationStrategy|SchedulerType|HubStrategy|FSDPOption)"
    r"|transformers\.trainer_pt_utils\.AcceleratorConfig"
    r"|transformers\.integrations\.deepspeed\.(HfDeepSpeedConfig|HfTrainerDeepSpeedConfig)"
    r"|transformers\.generation\.configuration_utils\.(GenerationConfig|CompileConfig)"
    r"|transformers\.debug_utils\.DebugOption|trl(\.\w+)+\.\w+Config|trl\.scripts\.utils\.\w+Arguments"
    r"|trl_ext\.trainers\.\w+_config\.\w+Config"
    r"|accelerate\.state\.(PartialState|AcceleratorState|GradientState)|accelerate\.parallelism_config\.ParallelismConfig"
    r"|accelerate\.utils\.dataclasses\.(DistributedType|SageMakerDistributedType|PrecisionType|RNGType|LoggerType"
    r"|ComputeEnvironment|DynamoBackend|FP8BackendType|DeepSpeedPlugin|FullyShardedDataParallelPlugin|MegatronLMPlugin"
    r"|GradientAccumulationPlugin|DataLoaderConfiguration|ProjectConfiguration|TorchDynamoPlugin|TorchTensorParallelPlugin"
    r"|DistributedDataParallelKwargs|InitProcessGroupKwargs|GradScalerKwargs|AutocastKwargs|ProfileKwargs|FP8RecipeKwargs"
    r"|Torch(Context|Tensor)ParallelConfig|DeepSpeedSequenceParallelConfig)"
    r"|torch\.distributed\.fsdp(\.api|\._fully_shard\._fsdp_api|\.fully_sharded_data_parallel)?\.(ShardingStrategy"
    r"|BackwardPrefetch|StateDictType|MixedPrecision|MixedPrecisionPolicy|CPUOffload|CPUOffloadPolicy|OffloadPolicy"
    r"|(Full|Sharded|Local)?(Optim)?StateDictConfig)"
    r"|peft(\.tuners\.\w+)?\.config\.\w+Config|peft\.utils\.peft_types\.(PeftType|TaskType)"
    r"|deepspeed\.runtime\.zero\.(config|offload_config)\.(ZeroStageEnum|OffloadDeviceEnum)"
    r"|deepspeed\.runtime\.fp16\.loss_scaler\.(LossScaler|DynamicLossScaler)"
    r"|deepspeed\.utils\.tensor_fragment\.(fragment_address|tensor_fragment)"
)
_PLAIN = {
    "collections": {"OrderedDict", "defaultdict", "deque", "Counter"}, "pathlib": {"PosixPath", "WindowsPath", "Path",
    "PurePosixPath", "PureWindowsPath"}, "datetime": {"datetime", "timedelta", "date", "timezone"},
    "builtins": {"set", "frozenset", "dict", "list", "tuple", "int", "float", "bool", "str", "bytes", "bytearray",
                 "slice", "complex", "range", "object"},
    "_codecs": {"encode"}, "copyreg": {"_reconstructor"}, "argparse": {"Namespace"}, "types": {"SimpleNamespace"},
    "decimal": {"Decimal"}, "fractions": {"Fraction"}, "uuid": {"UUID"}, "enum": {"Enum"},
}  # fmt: skip
_NUMPY = {
    "_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer", "RandomState", "Generator", "__generator_ctor",
    "__bit_generator_ctor", "__randomstate_ctor", "__pyx_unpickle_SeedSequence", "SeedSequence", "MT19937", "PCG64",
    "PCG64DXSM", "Philox", "SFC64",
}  # fmt: skip
_BUILTINS_OF_PYTHON_2 = {"xrange", "long", "unicode", "set", "frozenset", "bytes", "bytearray", "complex", "object"}


def is_of_tensors(name: Name) -> bool:
    """Of what every file of tensors imports."""
    if str(name) in _TENSORS or (name.module == "torch" and (name.name in _DTYPES or _is_storage(name.name))):
        return True
    return _DISTRIBUTED.fullmatch(str(name)) is not None


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
    if name.module == "__builtin__":  # as protocol 2 calls it
        return None if name.name in _BUILTINS_OF_PYTHON_2 else Severity.CRITICAL
    if root == "numpy":
        return None if name.name in _NUMPY or (name.module == "numpy.dtypes" and is_class) else Severity.CRITICAL
    if of_a_trainer and _OF_TRAINERS.fullmatch(str(name)):
        return None
    if root == "torch" and not name.module.startswith(("torch.nn.", "torch.optim")):
        return Severity.CRITICAL  # some of its classes open files when they are made, or compile
    if root in sys.stdlib_module_names or not root or _MAKES_CODE.search(name.module):
        return Severity.CRITICAL
    return Severity.WARNING
