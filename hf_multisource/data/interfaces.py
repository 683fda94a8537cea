"""Type aliases that several parts of the package use: models, configurations and preprocessors."""

from __future__ import annotations

from typing import TypeAlias

from transformers import PreTrainedTokenizerBase, SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor

from hf_multisource import (
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceRNNConfig,
    MultiSourceRNNForConditionalGeneration,
)

Model: TypeAlias = MultiSourceForConditionalGeneration | MultiSourceRNNForConditionalGeneration
Config: TypeAlias = MultiSourceConfig | MultiSourceRNNConfig
Family: TypeAlias = type[MultiSourceConfig] | type[MultiSourceRNNConfig]
#: Tokenizer, image processor or feature extractor of one source.
Preprocessor: TypeAlias = PreTrainedTokenizerBase | BaseImageProcessor | SequenceFeatureExtractor
