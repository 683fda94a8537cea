"""Transformers models that translate from several sources at once."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoProcessor

from .collation import DataCollatorForMultiSource
from .combiners import COMBINERS, Combiner
from .configuration_multisource import MultiSourceConfig, SourceConfig
from .modeling_multisource import MultiSourceForConditionalGeneration, MultiSourceModel
from .processing_multisource import MultiSourceProcessor
from .sampling import LengthBucketSampler, MultiSourceTrainer

AutoConfig.register("multisource", MultiSourceConfig)
AutoModel.register(MultiSourceConfig, MultiSourceModel)
AutoModelForSeq2SeqLM.register(MultiSourceConfig, MultiSourceForConditionalGeneration)
AutoProcessor.register(MultiSourceConfig, MultiSourceProcessor)

__all__ = [
    "COMBINERS",
    "Combiner",
    "DataCollatorForMultiSource",
    "LengthBucketSampler",
    "MultiSourceConfig",
    "MultiSourceForConditionalGeneration",
    "MultiSourceModel",
    "MultiSourceProcessor",
    "MultiSourceTrainer",
    "SourceConfig",
]
