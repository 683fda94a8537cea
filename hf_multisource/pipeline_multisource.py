"""The model as a Transformers pipeline: from sources by name to the text that the model makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Pipeline

from .collation import DataCollatorForMultiSource

TASK = "multisource-to-text"
LONGEST = 256  # new tokens where nothing else is said, as in Transformers' own text pipelines
LENGTH_SETTINGS = ("max_new_tokens", "max_length", "generation_config")


class MultiSourcePipeline(Pipeline):
    """Generates a text from the sources of an example.

    Made by Transformers' `pipeline`, from a model and its [`MultiSourceProcessor`]. Whatever a call takes may be given
    there, too, for all calls.

    Example:
        >>> import hf_multisource
        >>> from transformers import pipeline
        >>> pipe = pipeline("multisource-to-text", model="org/name")  # doctest: +SKIP
        >>> pipe({"en": "A dog.", "de": None}, num_beams=4)  # doctest: +SKIP
        [{'generated_text': 'Pes.'}]
    """

    _load_processor: Any = True
    _load_tokenizer: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Generate.

        Args:
            inputs: An example, source name -> text (or picture, speech, features: whatever the processor takes as one
                value), or a list, a generator or a torch dataset of examples. A source that is left out, None or empty
                is absent. With a `batch_size`, those of a list are batched by length, the longest first.
            *args: Nothing: they would be left out with a warning.
            **kwargs: `batch_size` and `num_workers` as in every pipeline; `max_source_length`, in tokens, to cut longer
                text sources; `unreadable="absent"` to go on where a picture cannot be read; `return_scores=True` for a
                `score` with each text (from beam search: sum of log probabilities / length**length_penalty); all others
                go to `generate`.

        Returns:
            For an example: a list of `{"generated_text": ...}`, best first, `num_return_sequences` of them. For a list:
            a list of these, in its order. For a generator or dataset: an iterator over these, made as it is consumed.

        Raises:
            ValueError: If an example is no mapping, names an unknown source, has a source that is not what it should
                be, or has no source at all; the message names the source.
        """
        size = kwargs.get("batch_size") or self._batch_size or 1
        if not isinstance(inputs, list) or (inputs and size == 1):
            return super().__call__(inputs, *args, **kwargs)
        # The longest first: batches have little padding, and one that memory cannot hold shows at once.
        order = sorted(range(len(inputs)), key=self._lengths(inputs).__getitem__, reverse=True)
        results = super().__call__([inputs[i] for i in order], *args, **kwargs) if inputs else []
        return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]

    def _lengths(self, examples: list[Any]) -> list[int]:
        """Characters of the longest text of each; what is no example has none, and `preprocess` will say so."""
        processor: Any = self.processor
        texts = [name for name in processor.source_names if processor.main_input(name) == "input_ids"]
        values = [[x.get(name) for name in texts] if isinstance(x, Mapping) else [] for x in examples]
        return [max((len(value) for value in row if isinstance(value, str)), default=0) for row in values]

    def _sanitize_parameters(
        self,
        max_source_length: int | None = None,
        unreadable: str | None = None,
        return_scores: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        given = {"max_source_length": max_source_length, "unreadable": unreadable}
        preprocess = {key: value for key, value in given.items() if value is not None}
        if return_scores is not None:
            generate_kwargs["return_scores"] = return_scores
        return preprocess, generate_kwargs, {}

    def preprocess(  # type: ignore[override]
        self, inputs: Any, max_source_length: int | None = None, unreadable: str = "error"
    ) -> dict[str, Any]:
        """Encode one example.

        Args:
            inputs: The example.
            max_source_length: Cut longer text sources, in tokens.
            unreadable: Whether a picture that cannot be read is an "error" or "absent".

        Returns:
            The ids, or arrays, and the masks of its sources, not padded.
        """
        processor: Any = self.processor
        if not isinstance(inputs, Mapping):
            names = ", ".join(processor.source_names)
            raise ValueError(f"an example must be a dict from source names ({names}) to texts; got {inputs!r}.")
        processor._check_names(inputs)
        for name, value in inputs.items():
            if value is not None and not processor.is_single(name, value):
                one = "a text" if processor.main_input(name) == "input_ids" else "one value, not a list,"
                raise ValueError(f"source {name!r} of an example must be {one} or None; got {value!r}.")
        encoded = processor(
            **inputs, truncation=max_source_length is not None, max_length=max_source_length, unreadable=unreadable
        )
        # Under one key and as lists: the base class would pad tensors one by one, and on the tokenizer's side.
        return {"example": dict(encoded)}

    def _forward(  # type: ignore[override]
        self, model_inputs: dict[str, Any], return_scores: bool = False, **generate_kwargs: Any
    ) -> dict[str, Any]:
        given = model_inputs["example"]
        examples = given if isinstance(given, list) else [given]
        batch = DataCollatorForMultiSource(self.processor)(examples)
        model: Any = self.model
        settings = model.generation_config
        if not (generate_kwargs.keys() & set(LENGTH_SETTINGS) or settings.max_new_tokens or settings.max_length):
            generate_kwargs["max_new_tokens"] = LONGEST
        generate_kwargs.update(return_dict_in_generate=True, output_scores=return_scores)
        inputs = {  # a model in half precision takes pixels and features in that
            key: tensor.to(self.device, model.dtype if tensor.is_floating_point() else None)
            for key, tensor in batch.items()
        }
        output = model.generate(**inputs, **generate_kwargs)
        result = {"sequences": output.sequences.unflatten(0, (len(examples), -1))}
        if return_scores:
            scores = getattr(output, "sequences_scores", None)
            if scores is None:
                raise ValueError("return_scores=True needs beam search: num_beams must be at least 2.")
            result["scores"] = scores.unflatten(0, (len(examples), -1))
        return result

    def postprocess(  # type: ignore[override]
        self, model_outputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Turn the ids of one example into texts.

        Args:
            model_outputs: `sequences`, and `scores` if they were asked for.

        Shape:
            sequences (1, K, T); scores (1, K).

        Returns:
            K dicts.
        """
        processor: Any = self.processor
        texts = processor.batch_decode(model_outputs["sequences"][0], skip_special_tokens=True)
        items: list[dict[str, Any]] = [{"generated_text": text} for text in texts]
        if "scores" in model_outputs:
            for item, score in zip(items, model_outputs["scores"][0].tolist(), strict=True):
                item["score"] = score
        return items

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save model, processor and code, so that `pipeline(task, model=folder)` loads them.

        Args:
            save_directory: The folder.
            **kwargs: As [`Pipeline.save_pretrained`].
        """
        super().save_pretrained(save_directory, **kwargs)
        processor: Any = self.processor
        processor.save_pretrained(save_directory, **kwargs)


__all__ = ["TASK", "MultiSourcePipeline"]
