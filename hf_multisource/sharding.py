"""Sharding of parameters among processes (FSDP2) for models with tied embeddings and output layer."""

from __future__ import annotations

from typing import Any

from torch import nn


def shard(model: nn.Module, plugin: Any) -> None:
    """Shard a model's parameters among all processes, in place.

    Every layer is a separate FSDP group, whose parameters are gathered only while the layer computes; all other
    parameters form one group, which is gathered from the first encoder to the loss. Accelerate would put the decoder's
    embeddings and the output layer into a separate group, but torch does not support parameters in two groups, such as
    embeddings that encoders share with the decoder.

    Args:
        model: The model, with the same weights on every process.
        plugin: Accelerate's `FullyShardedDataParallelPlugin` with the settings.

    Raises:
        ValueError: If only the first process has loaded the weights (`cpu_ram_efficient_loading`).
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if plugin.cpu_ram_efficient_loading:
        raise ValueError(
            "fsdp_cpu_ram_efficient_loading must be false: every process needs the weights to divide them."
        )
    settings = {
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
        "offload_policy": plugin.cpu_offload,
    }
    names: Any = model._no_split_modules
    for module in model.modules():
        if type(module).__name__ in names:
            fully_shard(module, reshard_after_forward=plugin.reshard_after_forward, **settings)
    kind: Any = type(model)
    fully_shard(model, **settings)
    sharded: Any = type(model)  # `fully_shard` derives a new class, but checkpoints must name the original class
    sharded.__name__, sharded.__module__ = kind.__name__, kind.__module__
    plugin.auto_wrap_policy = None  # the policy would search for layers by their class
