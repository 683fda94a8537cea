"""Transformers pipeline for multi-source models, which generates texts from sources given by name."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset
from transformers import Pipeline
from transformers.pipelines.pt_utils import KeyDataset

from .collation import DataCollatorForMultiSource
from .messages import shown
from .model_card import replace_empty_card
from .source_kinds import is_absent

TASK = "multisource-to-text"
LONGEST = 256  # default of `max_new_tokens`, as in Transformers' text pipelines
#: Key of a tokenizer's `init_kwargs` for the syntax of the placeholders that were masked in training.
SYNTAX_KEY = "mask_syntax"
MASK_TOKEN = re.compile(r"<(?:ph|open|close|tag|link|key|char)\d+>")  # tokens that replace masked placeholders
# Pattern of placeholders, markup, links and escape sequences, which rarely matches plain text.
PLACEHOLDER_SIGN = re.compile(r"%\w|[{}\\\n]|<[A-Za-z/!]|&[#\w]|://|www\.|\w@\w")
logger = logging.getLogger(__name__)


class Numbered:
    """An example and its index in the pipeline's input, for error messages.

    Args:
        number: Index of the example, from 0.
        example: The example.
    """

    def __init__(self, number: int, example: Any) -> None:
        self.number = number
        self.example = example


class Rows(Dataset[Numbered]):
    """PyTorch dataset of numbered examples, from the rows or one column of another dataset.

    Args:
        rows: The rows, or the values of the column, accessed by index.
        name: Source of the column; None: each row is an example.
    """

    def __init__(self, rows: Any, name: str | None = None) -> None:
        self.rows = rows
        self.name = name

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Numbered:
        return Numbered(index, self.rows[index] if self.name is None else {self.name: self.rows[index]})


class Stream(IterableDataset[Numbered]):
    """Iterable PyTorch dataset of numbered examples.

    Args:
        rows: The examples, which are read lazily.
        names: Keys of the rows that are read; None: all keys.
    """

    def __init__(self, rows: Any, names: Sequence[str] | None = None) -> None:
        self.rows = rows
        self.names = names

    def __iter__(self) -> Iterator[Numbered]:
        for number, row in enumerate(self.rows):
            read = row if self.names is None else {name: row[name] for name in self.names if name in row}
            yield Numbered(number, read)


class MultiSourcePipeline(Pipeline):
    """Pipeline that generates a text from the sources of an example.

    Transformers' `pipeline` creates the pipeline from a model and its [`MultiSourceProcessor`]. Options of a call, but
    not sources, can also be passed to `pipeline` as defaults for all calls.

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
    _has_warned = False  # whether the warning about unmasked placeholders has been logged

    def __call__(self, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Generate texts for one or more examples.

        Args:
            inputs: An example, as a dict from source names to texts (or pictures, speech, features: any single value
                that the processor accepts; arrays also as nested lists of numbers); or a list, a tuple, an iterator, a
                torch dataset, or a `Dataset` or `IterableDataset` of `datasets`, of examples. A source that is missing,
                None or empty is absent. With a `batch_size`, the examples of a list are batched by length, the longest
                first. Columns of `datasets` that are not sources are ignored with a warning, but a dict with an unknown
                key raises ValueError, even if it is such a row. `KeyDataset(dataset, name)` reads a single source.
            *args: Ignored with a warning.
            **kwargs: Sources by name instead of `inputs`: single values, or lists of values. `batch_size` and
                `num_workers` as in every pipeline; `truncation=True` to truncate text sources to the maximum length of
                their tokenizers, or `max_source_length`, in tokens, for all sources or as a mapping by source;
                `unreadable="absent"` to treat unreadable pictures as absent; `return_scores=True` for a `score` with
                each text (from beam search: sum of log probabilities / length**length_penalty); `return_tensors=True`
                for `generated_token_ids` instead of texts; `clean_up_tokenization_spaces`; all other options are passed
                to `generate`.

        Returns:
            For an example: a list of `num_return_sequences` dicts `{"generated_text": ...}`, best first. For a list or
            a tuple: a list of such lists, in the same order. For all other inputs: a lazy iterator over such lists.

        Raises:
            ValueError: If an example is not a mapping, has an unknown source, has a source with an invalid value, or
                has no source; the message gives the source and the index of the example. Also if both sources and
                `inputs` are given, lists have different lengths, no column of a dataset is a source, or `inputs` is a
                DataFrame or a dict of splits.
        """
        processor: Any = self.processor
        named = {name: kwargs.pop(name) for name in processor.source_names if name in kwargs}
        if inputs is None and not named:
            processor._check_names(self._unknown(kwargs))
        if (inputs is None) is (not named):
            both = f", not both; got {', '.join(named)} beside the examples" if named else ""
            raise ValueError(f"give examples, or sources by name{both} ({', '.join(processor.source_names)}).")
        inputs = self._from_columns(named) if named else self._from_rows(inputs)
        if not isinstance(inputs, list):
            return super().__call__(inputs, *args, **kwargs)
        order = list(range(len(inputs)))
        if (kwargs.get("batch_size") or self._batch_size or 1) > 1:
            # Sorted to reduce padding; the longest batch first, so that running out of memory shows immediately.
            order.sort(key=self._lengths(inputs).__getitem__, reverse=True)
        results = super().__call__([Numbered(i, inputs[i]) for i in order], *args, **kwargs) if inputs else []
        return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]

    def _unknown(self, keywords: Iterable[str]) -> list[str]:
        """Return the keywords that are options of neither a pipeline nor `generate`."""
        model: Any = self.model
        calls = (super().__call__, self._sanitize_parameters, model.generate)
        known = {name for call in calls for name in inspect.signature(call).parameters}
        return [key for key in keywords if key not in known and not hasattr(model.generation_config, key)]

    def _from_columns(self, columns: dict[str, Any]) -> Any:
        """Convert sources given by name to an example, or lists of values by source to a list of examples."""
        processor: Any = self.processor
        given = {name: value for name, value in columns.items() if value is not None}
        if all(processor.is_single(name, value) or not hasattr(value, "__len__") for name, value in given.items()):
            return columns
        processor._batch_size(given)  # raises ValueError for lists of different lengths
        return [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]

    def _from_rows(self, inputs: Any) -> Any:
        """Convert the inputs to one example, a list of examples, or a torch dataset of numbered examples."""
        processor: Any = self.processor
        names = processor.source_names
        sort = type(inputs).__name__
        if hasattr(inputs, "to_dict") and hasattr(inputs, "columns"):
            raise ValueError(
                f'a {sort} is no list of examples; give its rows: table.to_dict("records"), or '
                "Dataset.from_pandas(table)."
            )
        if isinstance(inputs, Mapping) and hasattr(inputs, "select_columns"):
            raise ValueError(f"a {sort} is no list of examples: give one split of {', '.join(map(str, inputs))}.")
        if isinstance(inputs, KeyDataset) and inputs.key in names:
            return Rows(inputs, inputs.key)
        if hasattr(inputs, "select_columns"):  # a dataset of the library `datasets`
            columns = inputs.column_names
            if columns is None:  # unknown before the first row is read
                return Stream(inputs, names)
            others = [column for column in columns if column not in names]
            if len(others) == len(columns):
                raise ValueError(
                    f"none of the columns ({', '.join(columns)}) is a source; the sources are {', '.join(names)}."
                )
            if others:
                logger.warning(f"columns {', '.join(others)} are no sources ({', '.join(names)}) and are not read.")
                inputs = inputs.select_columns([column for column in columns if column in names])
        if isinstance(inputs, list | tuple):
            return list(inputs)
        if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable | Dataset):
            return inputs
        return Rows(inputs) if hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__") else Stream(inputs)

    def _lengths(self, examples: list[Any]) -> list[int]:
        """Return the length in characters of each example's longest text; 0 for invalid examples."""
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
            inputs: The example, or a `Numbered` example.
            truncation: Whether text sources are truncated; None: only if `max_source_length` is given.
            max_source_length: Maximum length of text sources, in tokens, or lengths by source; None: the maximum
                lengths of the tokenizers.
            unreadable: Whether an unreadable picture is an "error" or "absent".

        Returns:
            The unpadded ids, or arrays, and the masks of the sources.
        """
        processor: Any = self.processor
        numbered = isinstance(inputs, Numbered)
        example, number = (inputs.example, inputs.number) if numbered else (inputs, 0)
        place = f"example {number}" if numbered else "an example"
        if not isinstance(example, Mapping):
            names = ", ".join(processor.source_names)
            raise ValueError(f"{place} must be a dict from source names ({names}) to texts; got {shown(example)}.")
        try:
            processor._check_names(example)
        except ValueError as error:
            raise ValueError(f"{place}: {error}" if numbered else str(error)) from None
        for name, value in example.items():
            text = processor.kind_of(name).has_vocabulary
            one = not hasattr(value, "__len__") or is_absent(value) or processor.is_single(name, value)
            if not one and (text or not _is_numbers(value)):
                wanted = "a text" if text else "one value, not a list,"
                raise ValueError(f"source {name!r} of {place} must be {wanted} or None; got {shown(value)}.")
        self._warn_of_placeholders(example.values())
        with processor.count_from(number):  # as a batch of one, since a value may be a list of numbers
            batch = {name: [value] for name, value in example.items()}
            encoded = processor(**batch, truncation=truncation, max_length=max_source_length, unreadable=unreadable)
        # Lists under a single key, because the base class would pad tensors separately and on the tokenizer's side.
        return {"example": {key: rows[0] for key, rows in encoded.items()}}

    def _warn_of_placeholders(self, values: Iterable[Any]) -> None:
        """Warn once if a model trained with masked placeholders gets a text with unmasked placeholders."""
        processor: Any = self.processor
        syntax = getattr(getattr(processor, "tokenizer", None), "init_kwargs", {}).get(SYNTAX_KEY)
        if syntax is None or self._has_warned:
            return
        for value in values:
            if isinstance(value, str) and PLACEHOLDER_SIGN.search(MASK_TOKEN.sub("", value)):
                logger.warning(
                    f"this model was trained on texts whose placeholders and markup are masked ({SYNTAX_KEY}: "
                    f"{syntax}), but a pipeline reads texts as they are, such as {shown(value)}: placeholders may be "
                    "lost. Use TextTranslator of hf_multisource.evaluation.text_translator, which masks and restores "
                    "them, or mask the texts first. This warning is logged once."
                )
                self._has_warned = True
                return

    def _forward(  # type: ignore[override]
        self, model_inputs: dict[str, Any], return_scores: bool = False, **generate_kwargs: Any
    ) -> dict[str, Any]:
        given = model_inputs["example"]
        examples = given if isinstance(given, list) else [given]
        batch = DataCollatorForMultiSource(self.processor)(examples)
        model: Any = self.model
        given_config = generate_kwargs.get("generation_config")
        known = [vars(one) for one in (given_config, model.generation_config) if one is not None]

        def setting(name: str) -> Any:
            """Return the value of an option that holds in this call; None if it is not set."""
            return next((one[name] for one in (generate_kwargs, *known) if one.get(name) is not None), None)

        # Transformers' beam search returns scores of texts only together with the scores of all steps.
        added: dict[str, Any] = {
            "return_dict_in_generate": True,
            "output_scores": return_scores and setting("fold_beams") is False,
        }
        if not (setting("max_new_tokens") or setting("max_length")):
            added["max_new_tokens"] = LONGEST
        if given_config is None:
            generate_kwargs |= added
        else:  # Transformers deprecates options beside a configuration
            generate_kwargs["generation_config"] = copy.deepcopy(given_config)
            generate_kwargs["generation_config"].update(**added)
        inputs = {  # pixels and features must have the model's data type
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
        """Decode the generated ids of one example to texts.

        Args:
            model_outputs: `sequences`, and `scores` if they were requested.
            return_tensors: Whether ids are returned instead of texts.
            clean_up_tokenization_spaces: Whether spaces before punctuation are removed; None: the tokenizer's setting.

        Shape:
            sequences (1, K, T); scores (1, K).

        Returns:
            K dicts with text or ids, and the score if requested.
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


def _is_numbers(value: Any) -> bool:
    """Return whether a value is a number, or nested lists that begin with one."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, int | float)


__all__ = ["TASK", "MultiSourcePipeline"]
