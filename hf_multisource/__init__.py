"""Transformers models that translate from several sources at once."""

from .environment import broken_torchvision, refuse

try:
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoProcessor
    from transformers.pipelines import PIPELINE_REGISTRY

    from .analysis import TokenAttention, attention_to_tokens, returned_attentions, split_by_source
    from .arguments import MultiSourceTrainingArguments
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
    from .sampling import LengthBucketSampler, MultiSourceTrainer, TokenBatchSampler
    from .source_kinds import SourceKind
except (ImportError, RuntimeError) as _error:
    if (_message := broken_torchvision()) is None:
        raise
    refuse(_message, _error)

PIPELINE_REGISTRY.register_pipeline(TASK, pipeline_class=MultiSourcePipeline, pt_model=AutoModelForSeq2SeqLM)

for _config, _body, _model in (
    (MultiSourceConfig, MultiSourceModel, MultiSourceForConditionalGeneration),
    (MultiSourceRNNConfig, MultiSourceRNNModel, MultiSourceRNNForConditionalGeneration),
):
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _body)
    AutoModelForSeq2SeqLM.register(_config, _model)
    AutoProcessor.register(_config, MultiSourceProcessor)
    # `save_pretrained` and `push_to_hub` put the code beside the weights, for those who load them without the package.
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
