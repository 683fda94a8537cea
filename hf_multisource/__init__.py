"""Transformers models that translate from several sources at once."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from .environment import broken_torchvision, refuse

try:
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoProcessor
    from transformers.pipelines import PIPELINE_REGISTRY

    from .analysis import TokenAttention, attention_to_tokens, returned_attentions, split_by_source
    from .collation import DataCollatorForMultiSource
    from .combinations import COMBINATIONS
    from .combiners import COMBINERS, Combiner
    from .configuration_multisource import MultiSourceConfig, SourceConfig
    from .configuration_multisource_rnn import MultiSourceRNNConfig
    from .encoders import EncodedSource, SourceEncoder, register_source_kind
    from .ensemble import MultiSourceEnsemble
    from .equivalent_models import attach_encoder, convert_combiner
    from .modeling_multisource import MultiSourceForConditionalGeneration, MultiSourceModel
    from .modeling_multisource_rnn import MultiSourceRNNForConditionalGeneration, MultiSourceRNNModel
    from .pictures import read_picture
    from .pipeline_multisource import TASK, MultiSourcePipeline
    from .processing_multisource import MultiSourceProcessor
    from .rnn_attention import RNNSourceAttention
    from .source_kinds import SourceKind
except (ImportError, RuntimeError) as _error:
    if (_message := broken_torchvision()) is None:
        raise
    refuse(_message, _error)

if TYPE_CHECKING:
    from .arguments import MultiSourceTrainingArguments
    from .sampling import LengthBucketSampler, MultiSourceTrainer, TokenBatchSampler

PIPELINE_REGISTRY.register_pipeline(TASK, pipeline_class=MultiSourcePipeline, pt_model=AutoModelForSeq2SeqLM)

for _config, _body, _model in (
    (MultiSourceConfig, MultiSourceModel, MultiSourceForConditionalGeneration),
    (MultiSourceRNNConfig, MultiSourceRNNModel, MultiSourceRNNForConditionalGeneration),
):
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _body)
    AutoModelForSeq2SeqLM.register(_config, _model)
    AutoProcessor.register(_config, MultiSourceProcessor)
    # `save_pretrained` and `push_to_hub` save the code with the weights, so that checkpoints load without the package.
    _config.register_for_auto_class()
    _body.register_for_auto_class("AutoModel")
    _model.register_for_auto_class("AutoModelForSeq2SeqLM")
MultiSourceProcessor.register_for_auto_class()

__all__ = [
    "COMBINATIONS",
    "COMBINERS",
    "Combiner",
    "DataCollatorForMultiSource",
    "EncodedSource",
    "LengthBucketSampler",
    "MultiSourceConfig",
    "MultiSourceEnsemble",
    "MultiSourceForConditionalGeneration",
    "MultiSourceModel",
    "MultiSourcePipeline",
    "MultiSourceProcessor",
    "MultiSourceRNNConfig",
    "MultiSourceRNNForConditionalGeneration",
    "MultiSourceRNNModel",
    "MultiSourceTrainer",
    "MultiSourceTrainingArguments",
    "RNNSourceAttention",
    "SourceConfig",
    "SourceEncoder",
    "SourceKind",
    "TokenAttention",
    "TokenBatchSampler",
    "attach_encoder",
    "attention_to_tokens",
    "convert_combiner",
    "read_picture",
    "register_source_kind",
    "returned_attentions",
    "split_by_source",
]

# Names that are imported on first access, and their submodules. Importing Transformers' Trainer takes a third of the
# import time of the whole package, and inference does not need it.
_FOR_TRAINING = {
    "LengthBucketSampler": "sampling",
    "MultiSourceTrainer": "sampling",
    "MultiSourceTrainingArguments": "arguments",
    "TokenBatchSampler": "sampling",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return _version("hf-multisource")
        except _PackageNotFoundError as error:  # the package is not installed, but found by PYTHONPATH
            raise AttributeError(f"module {__name__!r} has no {name}, since it is not installed") from error
    if name not in _FOR_TRAINING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_FOR_TRAINING[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
