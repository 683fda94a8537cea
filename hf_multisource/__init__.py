"""Transformers models that translate from several sources at once."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoProcessor
from transformers.pipelines import PIPELINE_REGISTRY

from .analysis import TokenAttention, attention_to_tokens, returned_attentions, split_by_source
from .collation import DataCollatorForMultiSource
from .combiners import COMBINERS, Combiner
from .configuration_multisource import MultiSourceConfig, SourceConfig
from .conversion import attach_encoder, convert_combiner
from .modeling_multisource import MultiSourceForConditionalGeneration, MultiSourceModel
from .pictures import read_picture
from .pipeline_multisource import TASK, MultiSourcePipeline
from .processing_multisource import MultiSourceProcessor
from .sampling import LengthBucketSampler, MultiSourceTrainer, TokenBatchSampler

AutoConfig.register("multisource", MultiSourceConfig)
AutoModel.register(MultiSourceConfig, MultiSourceModel)
AutoModelForSeq2SeqLM.register(MultiSourceConfig, MultiSourceForConditionalGeneration)
AutoProcessor.register(MultiSourceConfig, MultiSourceProcessor)
PIPELINE_REGISTRY.register_pipeline(TASK, pipeline_class=MultiSourcePipeline, pt_model=AutoModelForSeq2SeqLM)

# `save_pretrained` and `push_to_hub` put the code beside the weights, for those who load them without the package.
MultiSourceConfig.register_for_auto_class()
MultiSourceModel.register_for_auto_class("AutoModel")
MultiSourceForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
MultiSourceProcessor.register_for_auto_class()

__all__ = [
    "COMBINERS",
    "Combiner",
    "DataCollatorForMultiSource",
    "LengthBucketSampler",
    "MultiSourceConfig",
    "MultiSourceForConditionalGeneration",
    "MultiSourceModel",
    "MultiSourcePipeline",
    "MultiSourceProcessor",
    "MultiSourceTrainer",
    "SourceConfig",
    "TokenAttention",
    "TokenBatchSampler",
    "attach_encoder",
    "attention_to_tokens",
    "convert_combiner",
    "read_picture",
    "returned_attentions",
    "split_by_source",
]
