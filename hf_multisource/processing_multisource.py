"""From texts by source name to the tensors the model takes, and from ids back to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import BatchFeature, PreTrainedTokenizerBase
from transformers.processing_utils import ProcessorMixin

from .collation import LABEL_PADDING, pad_rows, source_key

PADDINGS = (None, True, False, "longest", "max_length", "do_not_pad")
Texts = str | None | Sequence[str | None]


class MultiSourceProcessor(ProcessorMixin):
    """Tokenizes every source and the target.

    Args:
        tokenizer: The target's tokenizer, and that of every source without its own.
        source_names: The model's sources, in order.
        source_tokenizers: Tokenizers of sources that have their own vocabulary, by name.

    Raises:
        ValueError: If `source_names` is empty or a tokenizer belongs to no source.

    Example:
        >>> from hf_multisource import MultiSourceProcessor
        >>> processor = MultiSourceProcessor.from_pretrained("org/name")  # doctest: +SKIP
        >>> batch = processor(en=["A dog.", "A cat."], de=["Ein Hund.", None], return_tensors="pt")  # doctest: +SKIP
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        source_names: Sequence[str] = (),
        source_tokenizers: Mapping[str, PreTrainedTokenizerBase] | None = None,
    ) -> None:
        super().__init__(tokenizer)
        self.source_names = list(source_names)
        self.source_tokenizers = dict(source_tokenizers or {})
        if not self.source_names:
            raise ValueError("source_names must name at least one source; got none.")
        self._check_names(self.source_tokenizers)

    @classmethod
    def get_attributes(cls) -> list[str]:
        """The parts that [`ProcessorMixin`] loads and saves itself.

        Returns:
            Their names.
        """
        return ["tokenizer"]

    @property
    def model_input_names(self) -> list[str]:
        """Keywords of all sources' tensors."""
        return [
            source_key(i, name, key)
            for i, name in enumerate(self.source_names)
            for key in ("input_ids", "attention_mask")
        ]

    def get_tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """The tokenizer of a source.

        Args:
            name: The source's name.

        Returns:
            Its own, or else the target's.
        """
        return self.source_tokenizers.get(name, self.tokenizer)

    @property
    def pad_token_id(self) -> int:
        """The id that pads the target; Trainer asks for it."""
        return self.tokenizer.pad_token_id

    def __call__(
        self,
        *,
        text_target: str | Sequence[str] | None = None,
        padding: bool | str | None = None,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        **sources: Texts,
    ) -> BatchFeature:
        """Encode one example or a batch.

        Args:
            text_target: The target text or texts; gives `labels`.
            padding: True or "longest": each source to its longest row; "max_length": to `max_length`; None: pad if
                tensors are asked for. Labels are padded with -100.
            truncation: Whether longer texts are cut to `max_length`.
            max_length: In tokens, of each source and of the target.
            return_tensors: "pt" for tensors, "np" for arrays, None for lists.
            **sources: Text or texts by source name. None, an empty or white text, or a name left out: absent.

        Returns:
            `input_ids` and `attention_mask` of every source (bare for source 0, prefixed for the others; absent ones
            have masks of zeros), and `labels`.

        Raises:
            ValueError: If a name is no source's, lists have different lengths, an example has no source at all, or
                `padding` is unknown.
        """
        self._check_names(sources)
        if padding not in PADDINGS:
            raise ValueError(f"padding must be one of {', '.join(map(repr, PADDINGS))}; got {padding!r}.")
        if padding == "max_length" and max_length is None:
            raise ValueError('padding="max_length" needs a max_length.')
        if padding is None:
            padding = return_tensors is not None
        single = all(texts is None or isinstance(texts, str) for texts in (*sources.values(), text_target))
        columns: dict[str, Any] = {name: [t] if single else t for name, t in sources.items() if t is not None}
        targets: Any = [text_target] if single and text_target is not None else text_target
        size = self._batch_size(columns if targets is None else {**columns, "text_target": targets})
        self._check_present(columns, size)

        def pad(rows: list[list[int]], value: int) -> list[list[int]]:
            if padding in (False, "do_not_pad"):
                return rows
            return pad_rows(rows, value, to=max_length if padding == "max_length" else None)

        data: dict[str, list[Any]] = {}
        for i, name in enumerate(self.source_names):
            rows = self._encode(self.get_tokenizer(name), columns.get(name) or [None] * size, truncation, max_length)
            data[source_key(i, name, "input_ids")] = pad(rows, self.get_tokenizer(name).pad_token_id)
            data[source_key(i, name, "attention_mask")] = pad([[1] * len(row) for row in rows], 0)
        if targets is not None:
            data["labels"] = pad(self._encode(self.tokenizer, targets, truncation, max_length, True), LABEL_PADDING)
        if single and return_tensors is None:
            data = {key: rows[0] for key, rows in data.items()}
        return BatchFeature(data, tensor_type=return_tensors)

    def _check_names(self, sources: Mapping[str, Any]) -> None:
        unknown = [name for name in sources if name not in self.source_names]
        if unknown:
            raise ValueError(f"unknown source {unknown[0]!r}; the sources are {', '.join(self.source_names)}.")

    def _batch_size(self, columns: Mapping[str, Any]) -> int:
        for name, texts in columns.items():
            if isinstance(texts, str):
                raise ValueError(f"{name} is a single text, others are lists: give single texts or lists throughout.")
        sizes = {name: len(texts) for name, texts in columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"sources and target must have equally many texts; got {sizes}.")
        return next(iter(sizes.values()), 1)

    def _check_present(self, columns: Mapping[str, Any], size: int) -> None:
        for row in range(size):
            if not any(texts[row] and texts[row].strip() for name, texts in columns.items()):
                names = ", ".join(self.source_names)
                raise ValueError(f"example {row} has no source at all; give it at least one of {names}.")

    def _encode(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[str | None],
        truncation: bool,
        max_length: int | None,
        is_target: bool = False,
    ) -> list[list[int]]:
        """Ids of every text; none where a source is absent. An empty target is a text like any other."""
        present = [i for i, text in enumerate(texts) if is_target or (text and text.strip())]
        rows: list[list[int]] = [[] for _ in texts]
        if present:
            kwargs: dict[str, Any] = {"truncation": True, "max_length": max_length} if truncation else {}
            chosen = [texts[i] for i in present]
            encoded = tokenizer(text_target=chosen, **kwargs) if is_target else tokenizer(chosen, **kwargs)
            for i, ids in zip(present, encoded["input_ids"], strict=True):
                rows[i] = ids
        return rows

    def to_dict(self) -> dict[str, Any]:
        """What `processor_config.json` holds; tokenizers have files of their own.

        Returns:
            A dict of JSON values.
        """
        output: dict[str, Any] = super().to_dict()
        output["source_tokenizers"] = list(self.source_tokenizers)
        return output

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Save everything; the target's tokenizer at the top, a source's own in `<name>_tokenizer`.

        Args:
            save_directory: The folder.
            push_to_hub: Whether to upload it too.
            **kwargs: As [`ProcessorMixin.push_to_hub`]; `repo_id` is the folder's name if left out.

        Returns:
            As [`ProcessorMixin.save_pretrained`].
        """
        saved = super().save_pretrained(save_directory)
        for name, tokenizer in self.source_tokenizers.items():
            tokenizer.save_pretrained(f"{save_directory}/{name}_tokenizer")
        if push_to_hub:  # only now is everything there
            self.push_to_hub(kwargs.pop("repo_id", None) or Path(save_directory).name, **kwargs)
        return saved

    @classmethod
    def _get_arguments_from_pretrained(
        cls, pretrained_model_name_or_path: Any, processor_dict: dict[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        path = pretrained_model_name_or_path
        arguments = super()._get_arguments_from_pretrained(path, processor_dict, **kwargs)
        processor_dict = processor_dict if processor_dict is not None else {}
        names = processor_dict.pop("source_tokenizers", [])
        subfolder = kwargs.pop("subfolder", "")
        own = {
            name: cls._load_tokenizer_from_pretrained(f"{name}_tokenizer", path, subfolder=subfolder, **kwargs)
            for name in names
        }
        return [*arguments, processor_dict.pop("source_names", []), own]


__all__ = ["MultiSourceProcessor"]
