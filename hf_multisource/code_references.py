"""References from a checkpoint to its code, with which it can be loaded where this package is not installed."""

from __future__ import annotations

import copy

from transformers import PreTrainedModel

from .pipeline_multisource import TASK, MultiSourcePipeline

# `auto_map` of each model family. A checkpoint refers to both classes of its family, whichever of them was saved.
AUTO_MAPS = tuple(
    {
        "AutoModel": f"{module}.{prefix}Model",
        "AutoModelForSeq2SeqLM": f"{module}.{prefix}ForConditionalGeneration",
    }
    for module, prefix in (
        ("modeling_multisource", "MultiSource"),
        ("modeling_multisource_rnn", "MultiSourceRNN"),
    )
)
# `custom_pipelines` of all checkpoints.
PIPELINES = {
    TASK: {"impl": f"pipeline_multisource.{MultiSourcePipeline.__name__}", "pt": ["AutoModelForSeq2SeqLM"]},
}


def add_code_references(model: PreTrainedModel) -> None:
    """Add references to the code of a model to its configuration, if the model's class is part of this package.

    References to any other code are removed. Transformers adds references to user-defined classes on saving.

    Args:
        model: The model that is about to be saved.
    """
    for stale in ("auto_map", "custom_pipelines"):  # left from the loaded checkpoint
        vars(model.config).pop(stale, None)
    kind = type(model)
    name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    for places in AUTO_MAPS:
        if name in places.values():
            model.config.auto_map = dict(places)
            model.config.custom_pipelines = copy.deepcopy(PIPELINES)  # `pipeline` modifies it in place


__all__ = ["add_code_references"]
