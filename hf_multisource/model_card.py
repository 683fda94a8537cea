"""Model cards created from a model alone, without information on training data and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, file_exists
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import PushToHubMixin

from .source_kinds import FORMS, SourceKind

CARD = "README.md"
UNDESCRIBED = "## Model description\n\nMore information needed\n"  # placeholder in the cards of Transformers' trainers
GENERATED = (  # description in the empty card that Transformers writes before an upload
    "This is the model card of a 🤗 transformers model that has been pushed on the Hub. "
    "This model card has been automatically generated."
)
# Settings of a model that the card lists.
SIZES = (
    *("d_model", "num_layers", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "vocab_size"),
)
OWN_SIZES = ("layers", "attention_heads", "ffn_dim", "vocab_size", "feature_size")  # settings of a source in the card


class ModelCardMixin(PushToHubMixin):
    """Adds `create_card` to a model, which `push_to_hub` calls if the repository has no card."""

    def create_card(
        self,
        address: str = "org/name",
        *,
        language: str | Sequence[str] | None = None,
        license: str = "unknown",
        tags: Sequence[str] = (),
    ) -> ModelCard:
        """Create a model card from the model alone.

        The card lists the sources, their kinds, the combiner and the sizes, and shows how to load and use the model
        with all or some of its sources. The card makes no statements about training data, scores or license terms. Save
        the card with `card.save("README.md")`, or publish it with `card.push_to_hub(address)`. The model's
        `push_to_hub` and `save_pretrained(..., push_to_hub=True)` create this card if the repository has no card.

        Args:
            address: Argument of `from_pretrained` in the examples: the Hub id of the model.
            language: Codes of the languages of sources and target, such as "en".
            license: License identifier of the Hub.
            tags: Additional tags.

        Returns:
            The card.

        Raises:
            ValueError: If the model has no output layer.

        Example:
            >>> from hf_multisource import MultiSourceConfig, MultiSourceForConditionalGeneration
            >>> config = MultiSourceConfig(sources=["en", "de"], d_model=16, encoder_layers=1, decoder_layers=1)
            >>> card = MultiSourceForConditionalGeneration(config).create_card("org/name", license="apache-2.0")
            >>> card.data.tags
            ['multi-source', 'serial']
        """
        model: Any = self
        if not model.can_generate():
            raise ValueError(f"{type(self).__name__} has no output layer: make the card of the whole model.")
        config = model.config
        kinds = {name: _kind(config, name) for name in config.source_names}
        sees = FORMS["picture"].name in {kind.name for kind in kinds.values()}
        data = ModelCardData(
            language=[language] if isinstance(language, str) else None if language is None else list(language),
            license=license,
            library_name="transformers",
            pipeline_tag="image-text-to-text" if sees else "translation",
            tags=list(dict.fromkeys(["multi-source", *config.strategy.split(", "), *tags])),
        )
        body = _body(config, address, kinds, model.num_parameters())
        return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}")

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model without changing an existing card in the folder, even if the folder is uploaded.

        The empty card that Transformers writes does not count as an existing card; it is replaced before an upload.

        Args:
            save_directory: The folder.
            *args: As [`PreTrainedModel.save_pretrained`].
            **kwargs: As [`PreTrainedModel.save_pretrained`].
        """
        card = Path(save_directory) / CARD
        # Transformers overwrites this card by the card of the repository, or by an empty one, just before the upload.
        own = card.read_bytes() if card.is_file() and not _is_empty_card(card) else None
        vars(self)["_card_of_folder"] = own
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        except BaseException:
            # Otherwise the next call would mistake the card written by Transformers for the user's card.
            if own is not None:
                card.write_bytes(own)
            elif card.is_file():
                card.unlink()
            raise
        finally:
            del vars(self)["_card_of_folder"]

    def _upload_modified_files(
        self, working_dir: Any, repo_id: str, files_timestamps: dict[str, float], *args: Any, **kwargs: Any
    ) -> Any:
        model: Any = self
        published = replace_empty_card(
            working_dir, repo_id, model if model.can_generate() else None, kwargs.get("token")
        )
        own = vars(self).get("_card_of_folder")
        if own is not None:
            (Path(working_dir) / CARD).write_bytes(own)
            files_timestamps = {**files_timestamps, CARD: math.inf if published else 0.0}  # old files are skipped
        return super()._upload_modified_files(working_dir, repo_id, files_timestamps, *args, **kwargs)


def _is_empty_card(path: Path) -> bool:
    """Return whether a card is the empty card that Transformers writes for any model."""
    text = path.read_text("utf-8", errors="replace")
    if GENERATED not in text:
        return False
    empty = ModelCard.from_template(ModelCardData(), model_description=GENERATED)
    return bool(ModelCard(text, ignore_metadata_errors=True).text.split() == empty.text.split())


def replace_empty_card(folder: Any, repo_id: str, model: Any, token: Any = None) -> bool:
    """Replace the empty card that Transformers writes before an upload to a repository without a card.

    Args:
        folder: The folder that is about to be uploaded.
        repo_id: Hub id of the repository.
        model: The model whose card is written; None: the empty card is deleted, so that a later upload of the model
            writes the card.
        token: The token of the upload.

    Returns:
        Whether the repository has a card, in which case nothing is replaced.
    """
    if file_exists(repo_id, CARD, token=token):
        return True
    card = Path(folder) / CARD
    tags = ModelCard.load(card).data.tags or []  # tags passed by the caller
    if model is None:
        card.unlink()
    else:
        model.create_card(repo_id, tags=tags).save(card)
    return False


def _kind(config: Any, name: str) -> SourceKind:
    """Return the kind of a source's values; for a wrapped encoder, the kind that the wrapped model reads."""
    kind: SourceKind = config.source_kind(name)
    if not kind.wraps:
        return kind
    model_class: Any = MODEL_MAPPING[type(config.encoder_owner(name).encoder)]
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class  # Funnel has two classes
    for wrapped in kind.wraps:
        if model_class.main_input_name in wrapped.inputs:
            return wrapped
    raise ValueError(
        f"sources[{name}].encoder: a {model_class.__name__} reads {model_class.main_input_name!r}, no known kind."
    )


def _encoder(config: Any, source: Any) -> str:
    """Describe the encoder of a source in a few words."""
    if source.share_encoder_with is not None:
        return f"that of `{source.share_encoder_with}`"
    words = [f"`{source.encoder.model_type}` of Transformers"] if source.encoder is not None else []
    words += [f"{key} {value}" for key in OWN_SIZES if (value := getattr(source, key)) is not None]
    words += ["frozen"] if source.freeze else []
    return ", ".join(words) or "the sizes below"


def _arguments(values: Mapping[str, str]) -> str:
    """Return the arguments of a call as Python code; a name may be a keyword of Python, such as `is`."""
    return ", ".join(
        f'**{{"{name}": {value}}}' if iskeyword(name) else f"{name}={value}" for name, value in values.items()
    )


def _body(config: Any, address: str, kinds: dict[str, SourceKind], parameters: int) -> str:
    """Return the text of the card without its metadata."""
    table = "\n".join(
        f"| {i} | `{source.name}` | {source.kind} | {kinds[source.name].name} | {_encoder(config, source)} |"
        for i, source in enumerate(config.sources, start=1)
    )
    sizes = "\n".join(f"| `{key}` | {getattr(config, key)} |" for key in SIZES if key in config.setting_names())
    values = {name: (kind.example or "{name}_value").replace("{name}", name) for name, kind in kinds.items()}
    last = list(values)[-1]
    several = len(values) > 1
    both = _arguments(values)
    rows = _arguments({name: f"[{value}, {'None' if name == last else value}]" for name, value in values.items()})
    imports = "import numpy\n" if "numpy" in both else ""
    placeholders = "".join(
        f'{values[name]} = ...  # replace by a value of kind "{kind.name}"\n'
        for name, kind in kinds.items()
        if kind.example is None
    )
    flag = ", trust_remote_code=True"
    code = """The code of the model lies beside its weights; with `hf_multisource` installed and imported, the flag
`trust_remote_code=True` is not needed."""
    if registered := [name for name, kind in kinds.items() if type(kind).__module__ != SourceKind.__module__]:
        flag = ""
        imports += "import hf_multisource\n"
        code = "\n".join(
            f"The source `{name}` is of kind `{kinds[name].name}`, whose code is not part of this model: call "
            "`register_source_kind` with it first."
            for name in registered
        )
    absent = f"""
Any source may be absent in any example, as long as one is there: leave it out, or give None. Of several examples, each
source is a list:

```python
batch = processor({rows}, return_tensors="pt")
```
"""
    return f"""# {" ".join(address.split("/")[-1].split())}

A model that reads {"several sources" if several else "one source"} and writes one text. It was made with
`hf_multisource`; this card was made from the model's configuration alone.

| | source | kind | given as | encoder |
|---|---|---|---|---|
{table}

Combiner: `{config.strategy}`. {parameters:,} parameters (`model_type` `{config.model_type}`).

| size | value |
|---|---|
{sizes}

## Use it

```python
{imports}from transformers import AutoModelForSeq2SeqLM, AutoProcessor

address = {address!r}
processor = AutoProcessor.from_pretrained(address{flag})
model = AutoModelForSeq2SeqLM.from_pretrained(address{flag}).eval()
{placeholders}batch = processor({both}, return_tensors="pt")
output = model.generate(**batch, num_beams=4, max_new_tokens=128)
print(processor.batch_decode(output, skip_special_tokens=True))
```

{code}
{absent if several else ""}
## Not known

The configuration does not say what the model was trained on, how good it is, and under what terms its weights and its
data may be used. Whoever publishes the model should write that here.
"""


def describe_in_card(path: Path, model: Any, address: str) -> None:
    """Add the sections on sources and usage from the model's own card to the card of a `Trainer`.

    Args:
        path: The card written by the `Trainer`.
        model: The model.
        address: Argument of `from_pretrained` in the examples: the Hub id of the model.
    """
    card: Any = ModelCard(path.read_text("utf-8"))
    own = model.create_card(address)
    description = own.text.split("\n\n", 1)[1].split("\n## Not known")[0].strip()
    card.text = card.text.replace(UNDESCRIBED, f"## Model description\n\n{description}\n", 1)
    card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *own.data.tags]))
    card.data.pipeline_tag = own.data.pipeline_tag
    card.save(path)


__all__ = ["CARD", "ModelCardMixin", "describe_in_card", "replace_empty_card"]
