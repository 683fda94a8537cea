"""From a picture, a recording and vectors to a text: processor, collator, Trainer, model and pipeline together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Seq2SeqTrainingArguments, ViTConfig, ViTImageProcessorPil, Wav2Vec2Config
from transformers import Wav2Vec2FeatureExtractor as SpeechExtractor

from builders import SMALL, randomize, three_source_processor, tiny_config
from hf_multisource import (
    DataCollatorForMultiSource,
    MultiSourceForConditionalGeneration,
    MultiSourcePipeline,
    MultiSourceProcessor,
    MultiSourceTrainer,
    attention_to_tokens,
)

VISION = ViTConfig(image_size=8, patch_size=4, **SMALL)
CONVOLUTION: dict[str, Any] = {
    "conv_dim": (8,),
    "conv_kernel": (10,),
    "conv_stride": (5,),
    "num_feat_extract_layers": 1,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "apply_spec_augment": False,
}
SPEECH = Wav2Vec2Config(**SMALL, **CONVOLUTION)


@pytest.fixture(scope="module")
def processor() -> MultiSourceProcessor:
    return MultiSourceProcessor(
        three_source_processor().tokenizer,
        ["en", "image", "audio", "vectors"],
        source_processors={
            "image": ViTImageProcessorPil(size={"height": 8, "width": 8}),
            "audio": SpeechExtractor(feature_size=1, sampling_rate=100, return_attention_mask=True),
        },
        feature_sources=["vectors"],
    )


def make_model(processor: MultiSourceProcessor, combiner: str = "serial", **fields: Any) -> Any:
    sources = [
        "en",
        {"name": "image", "kind": "pretrained", "encoder": VISION},
        {"name": "audio", "kind": "pretrained", "encoder": SPEECH},
        {"name": "vectors", "kind": "features", "feature_size": 3},
    ]
    vocab_size = len(processor.tokenizer)
    model = MultiSourceForConditionalGeneration(tiny_config(combiner, sources, vocab_size=vocab_size, **fields)).eval()
    randomize(model, 4)
    return model


def examples(folder: Path) -> list[dict[str, Any]]:
    """One example with all, one with each source alone, and one with two."""
    generator = np.random.default_rng(0)
    pictures = [Image.fromarray(generator.integers(0, 255, (9, 7, 3), dtype=np.uint8)) for _ in range(3)]
    pictures[1].save(folder / "dog.png")
    sounds = [generator.normal(size=size).astype(np.float32) for size in (60, 45)]
    vectors = [generator.normal(size=shape).astype(np.float16) for shape in ((4, 3), (3, 2, 2))]  # a sequence, a map
    return [
        {"en": "a dog runs", "image": pictures[0], "audio": sounds[0], "vectors": vectors[0]},
        {"en": "a dog"},
        {"image": str(folder / "dog.png"), "en": None},
        {"audio": {"array": sounds[1], "sampling_rate": 100}},
        {"vectors": vectors[1], "image": None, "en": " "},
        {"image": pictures[2], "vectors": vectors[1]},
    ]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_batch_of_any_sources_gives_what_each_example_gives_alone(
    processor: MultiSourceProcessor, tmp_path: Path
) -> None:
    model, rows = make_model(processor), examples(tmp_path)
    columns: Any = {name: [row.get(name) for row in rows] for name in processor.source_names}
    whole = processor(**columns, text_target=["un chien"] * 6, return_tensors="pt")
    collated = DataCollatorForMultiSource(processor)([processor(**row, text_target="un chien") for row in rows])
    assert whole.keys() == collated.keys()
    for key, value in whole.items():
        assert torch.equal(value, collated[key]), key
    logits = model(**whole).logits
    for i, row in enumerate(rows):
        given = {
            name: value
            for name, value in row.items()
            if not (value is None or (isinstance(value, str) and value == " "))
        }
        alone = processor(**given, text_target="un chien", return_tensors="pt")
        close(logits[i : i + 1], model(**alone).logits)


def test_it_trains_on_any_sources(processor: MultiSourceProcessor, tmp_path: Path) -> None:
    model, rows = make_model(processor, source_dropout=0.3), examples(tmp_path)
    data: Any = [processor(**row, text_target="un chien") for row in rows]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path / "run"), max_steps=4, per_device_train_batch_size=3, use_cpu=True, remove_unused_columns=False
    )
    collator: Any = DataCollatorForMultiSource(processor)
    MultiSourceTrainer(model, arguments, collator, data, processing_class=processor).train()
    for part in ("sources.en.", "sources.image.model.", "sources.audio.model.", "sources.vectors.projection."):
        changed = [key for key, value in model.state_dict().items() if part in key and not value.equal(before[key])]
        assert changed, part


def test_the_pipeline_reads_any_source(processor: MultiSourceProcessor, tmp_path: Path) -> None:
    model, rows = make_model(processor), examples(tmp_path)
    pipe: Any = MultiSourcePipeline(model=model, processor=processor)
    one_by_one = [pipe(row, max_new_tokens=4) for row in rows]
    assert pipe(rows, batch_size=4, max_new_tokens=4) == one_by_one


def test_saved_processor_and_model_read_the_same(processor: MultiSourceProcessor, tmp_path: Path) -> None:
    model, rows = make_model(processor), examples(tmp_path)
    model.save_pretrained(tmp_path / "saved")
    processor.save_pretrained(tmp_path / "saved")
    loaded: Any = MultiSourceForConditionalGeneration.from_pretrained(tmp_path / "saved")
    again = MultiSourceProcessor.from_pretrained(tmp_path / "saved")
    batch = processor(**rows[0], text_target="un chien", return_tensors="pt")
    assert torch.equal(
        loaded(**again(**rows[0], text_target="un chien", return_tensors="pt")).logits, model(**batch).logits
    )


def test_weights_are_told_of_states_of_every_kind(processor: MultiSourceProcessor, tmp_path: Path) -> None:
    model, rows = make_model(processor), examples(tmp_path)
    model.set_attn_implementation("eager")
    columns: Any = {name: [row.get(name) for row in rows] for name in processor.source_names}
    batch = processor(**columns, text_target=["un chien"] * 6, return_tensors="pt")
    encoded = model.get_encoder()(**batch)
    weights = model(**batch, encoder_outputs=encoded, output_attentions=True).cross_attentions[0]
    with pytest.raises(ValueError, match="source 'image' is no text: give what the encoder returned"):
        attention_to_tokens(weights, batch, batch["labels"], processor)
    expected = [{"image": 5, "audio": 11, "vectors": 4}, {}, {"image": 5}, {"audio": 8}, {"vectors": 4}]
    for i, counts in enumerate(expected):
        found = attention_to_tokens(weights, batch, batch["labels"], processor, i, None, encoded)
        numbered = {name: tokens for name, tokens in found.source_tokens.items() if name != "en"}
        assert numbered == {
            name: [str(state + 1) for state in range(counts.get(name, 0))] for name in ("image", "audio", "vectors")
        }
        present = sum(len(tokens) > 0 for tokens in found.source_tokens.values())
        close(found.weights.sum(-1), torch.full_like(found.weights[..., 0], present))
