"""FSDP2 and DeepSpeed over gloo, for tests on a machine without GPUs: Accelerate offers them on accelerators alone."""

import os
from typing import Any

from accelerate import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from trl_ext.configuration import engines


def _is_asked_for(engine: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{engine}") == "true"


def allow_engines_on_the_cpu() -> None:
    """What `AcceleratorState` does with the engine of the environment on a GPU, it then does on the CPU, too."""
    initialize = AcceleratorState.__init__

    def with_engine(
        self: Any, *args: Any, fsdp_plugin: Any = None, deepspeed_plugin: Any = None, **kwargs: Any
    ) -> None:
        initialize(self, *args, fsdp_plugin=fsdp_plugin, deepspeed_plugin=deepspeed_plugin, **kwargs)
        if _is_asked_for("FSDP") and not hasattr(self, "fsdp_plugin"):
            self.fsdp_plugin = fsdp_plugin or FullyShardedDataParallelPlugin()
            if self.mixed_precision != "no":
                self.fsdp_plugin.set_mixed_precision(self.mixed_precision)
            self.distributed_type = DistributedType.FSDP
        elif _is_asked_for("DEEPSPEED") and not hasattr(self, "deepspeed_plugins"):
            self.distributed_type = DistributedType.DEEPSPEED  # what the plugin asks for
            PartialState._shared_state["distributed_type"] = self.distributed_type
            plugin = deepspeed_plugin or DeepSpeedPlugin()
            plugin.set_mixed_precision(self.mixed_precision)
            plugin.select(_from_accelerator_state=True)
            self.deepspeed_plugins = plugin
        PartialState._shared_state["distributed_type"] = self.distributed_type

    AcceleratorState.__init__ = with_engine
    engines.SHARDS_ON_THE_CPU = True
