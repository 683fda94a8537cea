"""Write into a checkpoint where its code lies, so that it loads where this package is not installed."""

from __future__ import annotations

import copy

from transformers import PreTrainedModel

from .pipeline_multisource import TASK, MultiSourcePipeline

# Where a checkpoint finds both models of its family and the pipeline, though it is only one of them that is saved.
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
PIPELINES = {
    TASK: {"impl": f"pipeline_multisource.{MultiSourcePipeline.__name__}", "pt": ["AutoModelForSeq2SeqLM"]},
}


def add_code_references(model: PreTrainedModel) -> None:
    """Write into a model's configuration where its code lies, if the model is one of this package itself.

    References to any other code are removed. Transformers adds those of a user's own class when it is saved.

    Args:
        model: The model, about to be saved.
    """
    for stale in ("auto_map", "custom_pipelines"):  # of the checkpoint that the configuration was loaded from
        vars(model.config).pop(stale, None)
    kind = type(model)
    name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    for places in AUTO_MAPS:
        if name in places.values():
            model.config.auto_map = dict(places)
            model.config.custom_pipelines = copy.deepcopy(PIPELINES)  # `pipeline` writes into it


__all__ = ["add_code_references"]
