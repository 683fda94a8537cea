"""The model as a Transformers pipeline: from sources by name to the text that the model makes of them."""

from __future__ import annotations

import logging
import types
from collections.abc import Iterable, Mapping
from typing import Any

from torch.utils.data import Dataset
from transformers import Pipeline
from transformers.pipelines.pt_utils import KeyDataset

from .collation import DataCollatorForMultiSource
from .model_card import replace_empty_card

TASK = "multisource-to-text"
LONGEST = 256  # new tokens where nothing else is said, as in Transformers' own text pipelines
LENGTH_SETTINGS = ("max_new_tokens", "max_length", "generation_config")
logger = logging.getLogger(__name__)


class Rows(Dataset[Any]):
    """Rows of any data set, or one column of it, as examples in a data set of torch.

    Args:
        rows: The rows, or the values of the column, by number.
        name: The column's source; None: each row is an example.
    """

    def __init__(self, rows: Any, name: str | None = None) -> None:
        self.rows = rows
        self.name = name

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] if self.name is None else {self.name: self.rows[index]}


class MultiSourcePipeline(Pipeline):
    """Generates a text from the sources of an example.

    Made by Transformers' `pipeline`, from a model and its [`MultiSourceProcessor`]. The options of a call, but no
    sources, may be given there, too, for all calls.

    Example:
        >>> import hf_multisource
        >>> from transformers import pipeline
        >>> pipe = pipeline("multisource-to-text", model="org/name")  # doctest: +SKIP
        >>> pipe(en="A dog.", de=None, num_beams=4)  # doctest: +SKIP
        [{'generated_text': 'Pes.'}]
        >>> pipe([{"en": "A dog."}, {"de": "Eine Katze."}], batch_size=2)  # doctest: +SKIP
        [[{'generated_text': 'Pes.'}], [{'generated_text': 'Kočka.'}]]
    """

    _load_processor: Any = True
    _load_tokenizer: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False

    def __call__(self, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Generate.

        Args:
            inputs: An example, source name -> text (or picture, speech, features: whatever the processor takes as one
                value); or a list, an iterator, a torch dataset, or a `Dataset` or `IterableDataset` of `datasets`, of
                examples. A source that is left out, None or empty is absent. With a `batch_size`, those of a list are
                batched by length, the longest first. Columns of `datasets` that are no sources are left out with a
                warning; `KeyDataset(dataset, name)` reads one source alone.
            *args: Nothing: they would be left out with a warning.
            **kwargs: In place of `inputs`, sources by name: single values, or lists of values. `batch_size` and
                `num_workers` as in every pipeline; `truncation=True` to cut text sources to what their tokenizers say,
                or `max_source_length`, in tokens, for all or a mapping by source; `unreadable="absent"` to go on where
                a picture cannot be read; `return_scores=True` for a `score` with each text (from beam search: sum of
                log probabilities / length**length_penalty); `return_tensors=True` for `generated_token_ids` in place of
                texts; `clean_up_tokenization_spaces`; all others go to `generate`.

        Returns:
            For an example: a list of `{"generated_text": ...}`, best first, `num_return_sequences` of them. For a list:
            a list of these, in its order. For all else: an iterator over these, made as it is consumed.

        Raises:
            ValueError: If an example is no mapping, names an unknown source, has a source that is not what it should
                be, or has no source at all; the message names the source. Also if sources are given beside `inputs`,
                lists have different lengths, or no column of a data set is a source.
        """
        processor: Any = self.processor
        named = {name: kwargs.pop(name) for name in processor.source_names if name in kwargs}
        if (inputs is None) is (not named):
            both = f", not both; got {', '.join(named)} beside the examples" if named else ""
            raise ValueError(f"give examples, or sources by name{both} ({', '.join(processor.source_names)}).")
        inputs = self._from_columns(named) if named else self._from_rows(inputs)
        size = kwargs.get("batch_size") or self._batch_size or 1
        if not isinstance(inputs, list) or (inputs and size == 1):
            return super().__call__(inputs, *args, **kwargs)
        # The longest first: batches have little padding, and one that memory cannot hold shows at once.
        order = sorted(range(len(inputs)), key=self._lengths(inputs).__getitem__, reverse=True)
        results = super().__call__([inputs[i] for i in order], *args, **kwargs) if inputs else []
        return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]

    def _from_columns(self, columns: dict[str, Any]) -> Any:
        """The example, or the list of examples, that is given as one value or list of values for each source."""
        processor: Any = self.processor
        given = {name: value for name, value in columns.items() if value is not None}
        if all(processor.is_single(name, value) or not hasattr(value, "__len__") for name, value in given.items()):
            return columns
        processor._batch_size(given)  # refuses lists of different lengths
        return [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]

    def _from_rows(self, inputs: Any) -> Any:
        """The examples in a form that the base class takes: a dict, a list, a generator or a dataset of torch."""
        processor: Any = self.processor
        names = processor.source_names
        if isinstance(inputs, KeyDataset) and inputs.key in names:
            return Rows(inputs, inputs.key)
        if hasattr(inputs, "select_columns"):  # of the library `datasets`
            columns = inputs.column_names
            if columns is None:  # not known before the first row
                return ({name: row[name] for name in names if name in row} for row in inputs)
            others = [column for column in columns if column not in names]
            if len(others) == len(columns):
                raise ValueError(
                    f"none of the columns ({', '.join(columns)}) is a source; the sources are {', '.join(names)}."
                )
            if others:
                logger.warning(f"columns {', '.join(others)} are no sources ({', '.join(names)}) and are not read.")
                inputs = inputs.select_columns([column for column in columns if column in names])
            return Rows(inputs) if hasattr(inputs, "__len__") else (row for row in inputs)
        known = (str, bytes, tuple, list, Mapping, Dataset, types.GeneratorType)
        return (row for row in inputs) if isinstance(inputs, Iterable) and not isinstance(inputs, known) else inputs

    def _lengths(self, examples: list[Any]) -> list[int]:
        """Characters of the longest text of each; what is no example has none, and `preprocess` will say so."""
        processor: Any = self.processor
        texts = [name for name in processor.source_names if processor.kind_of(name).has_vocabulary]
        values = [[x.get(name) for name in texts] if isinstance(x, Mapping) else [] for x in examples]
        return [max((len(value) for value in row if isinstance(value, str)), default=0) for row in values]

    def _sanitize_parameters(
        self,
        truncation: bool | str | None = None,
        max_source_length: int | Mapping[str, int] | None = None,
        unreadable: str | None = None,
        return_scores: bool | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        def given(**settings: Any) -> dict[str, Any]:
            return {key: value for key, value in settings.items() if value is not None}

        return (
            given(truncation=truncation, max_source_length=max_source_length, unreadable=unreadable),
            {**generate_kwargs, **given(return_scores=return_scores)},
            given(return_tensors=return_tensors, clean_up_tokenization_spaces=clean_up_tokenization_spaces),
        )

    def preprocess(  # type: ignore[override]
        self,
        inputs: Any,
        truncation: bool | str | None = None,
        max_source_length: int | Mapping[str, int] | None = None,
        unreadable: str = "error",
    ) -> dict[str, Any]:
        """Encode one example.

        Args:
            inputs: The example.
            truncation: Whether longer text sources are cut; None: if there is a `max_source_length`.
            max_source_length: Length to cut text sources to, in tokens, or lengths by source; None: the tokenizers'.
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
            if hasattr(value, "__len__") and not processor.is_single(name, value):
                one = "a text" if processor.kind_of(name).has_vocabulary else "one value, not a list,"
                raise ValueError(f"source {name!r} of an example must be {one} or None; got {value!r}.")
        encoded = processor(**inputs, truncation=truncation, max_length=max_source_length, unreadable=unreadable)
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
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Turn the ids of one example into texts.

        Args:
            model_outputs: `sequences`, and `scores` if they were asked for.
            return_tensors: Whether the ids themselves are returned in place of texts.
            clean_up_tokenization_spaces: Whether spaces in front of punctuation are removed; None: as the tokenizer
                is set.

        Shape:
            sequences (1, K, T); scores (1, K).

        Returns:
            K dicts.
        """
        processor: Any = self.processor
        sequences = model_outputs["sequences"][0]
        items: list[dict[str, Any]] = [{"generated_token_ids": ids} for ids in sequences]
        if not return_tensors:
            texts = processor.batch_decode(
                sequences, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
            )
            items = [{"generated_text": text} for text in texts]
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

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        replace_empty_card(working_dir, repo_id, self.model, kwargs.get("token"))
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)


__all__ = ["TASK", "MultiSourcePipeline"]
