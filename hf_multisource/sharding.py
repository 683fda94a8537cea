"""Parameters divided among processes (FSDP2), where several embeddings and the output layer are one parameter."""

from __future__ import annotations

from typing import Any

from torch import nn


def shard(model: nn.Module, plugin: Any) -> None:
    """Divide a model's parameters among all processes, in place.

    Every layer is a group of its own, whose parameters are together only while it computes; all else is one group,
    together from the first encoder to the loss. Accelerate would give the decoder's embeddings and the output layer a
    group apart, and torch refuses a parameter that two groups see, such as embeddings that encoders share with them.

    Args:
        model: The model, with the same weights on every process.
        plugin: Accelerate's `FullyShardedDataParallelPlugin`, which says how.

    Raises:
        ValueError: If only the first process has read the weights.
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
    sharded: Any = type(model)  # a class of its own: what is saved must name the model's
    sharded.__name__, sharded.__module__ = kind.__name__, kind.__module__
    plugin.auto_wrap_policy = None  # it would look for the layers by their class
