"""Make the processor of a run, or load an existing one from the run folder."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AddedToken, PreTrainedTokenizerBase

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.interfaces import Preprocessor
from hf_multisource.data.masking import has_mask_tokens, remember_syntax
from hf_multisource.data.media import digest
from hf_multisource.data.rows import Row
from hf_multisource.foreign import load_auto
from hf_multisource.recipes.pretrained import load_preprocessor, load_processor
from hf_multisource.recipes.recipe import Recipe
from hf_multisource.recipes.tokenization import joint_text, train_tokenizer
from hf_multisource.recipes.written_sources import plain_rows
from hf_multisource.source_kinds import FORMS, SOURCE_KINDS

# Keys of tokenizer files about their origin, which are set when a tokenizer is loaded.
ABOUT_THE_FILE = {"is_local", "local_files_only", "name_or_path"}


def wrapped_parts(recipe: Recipe) -> dict[str, Preprocessor]:
    """Load the tokenizers, image processors and feature extractors of wrapped encoders.

    Args:
        recipe: The run's recipe.

    Returns:
        Tokenizer, image processor or feature extractor of each source with such an encoder, by source.

    Raises:
        ValueError: If a wrapped encoder has no checkpoint, and no `processor` is given.
    """
    origins = recipe.encoder_entries()
    parts: dict[str, Preprocessor] = {}
    for name, form in recipe.forms().items():
        origin = origins[name]
        place: Any = origin.get("processor", origin.get("encoder"))
        if not SOURCE_KINDS[origin.get("kind", "text")].wraps:
            continue
        if "processor" not in origin and not isinstance(place, str):
            raise ValueError(f"model.sources: the encoder of {name!r} is no checkpoint, so give its processor, too")
        text = FORMS[form].has_vocabulary
        parts[name] = load_auto("AutoTokenizer", place) if text else load_preprocessor(place, form)
    return parts


def make_processor(recipe: Recipe, training_rows: list[Row], parts: dict[str, Preprocessor]) -> MultiSourceProcessor:
    """Train or load the tokenizers, and combine them with the preprocessors of wrapped encoders.

    Args:
        recipe: The run's recipe.
        training_rows: Rows of the model's sources.
        parts: Preprocessors of wrapped encoders by source, from `wrapped_parts`.

    Returns:
        The processor, with the following tokens in its tokenizers: the markers of the sources for the source of a
        reverse run, for joined texts and, with `data.write_sources`, for the target; the tags for a source with
        synthetic text; and, with `data.placeholders`, the mask tokens in all tokenizers. The target's tokenizer then
        also stores the syntax of the placeholders.

    Raises:
        ValueError: If the tokenizer of a wrapped encoder lacks a token, a loaded tokenizer lacks the mask tokens, or
            the initial model has no tokenizer for a source.
    """
    sources, target = recipe.own_texts(), recipe.data.model_target
    written = {name: recipe.data.tokens_of(name) for name in recipe.data.model_sources}
    markers = {token for tokens in (*written.values(), recipe.data.target_tokens) for token in tokens}
    settings, forms = recipe.tokenizer, recipe.forms()
    texts = {name: part for name, part in parts.items() if isinstance(part, PreTrainedTokenizerBase)}

    def build(tokenizer: PreTrainedTokenizerBase, own: dict[str, PreTrainedTokenizerBase]) -> MultiSourceProcessor:
        if recipe.data.placeholders is not None:
            check_mask_tokens(recipe, {"target": tokenizer, **own}, texts)
            remember_syntax(tokenizer, recipe.data.placeholders)
        add_markers(tokenizer, recipe.data.target_tokens)
        for name, tokens in written.items():
            marked = (own | texts).get(name, tokenizer)
            if name in texts and (new := [token for token in tokens if token not in marked.get_vocab()]):
                raise ValueError(
                    f"the tokenizer of source {name!r}, a wrapped encoder, lacks {new[0]!r}, and cannot learn it"
                )
            add_markers(marked, tokens)
        return MultiSourceProcessor(
            tokenizer,
            recipe.data.model_sources,
            own | texts,
            source_processors={name: part for name, part in parts.items() if name not in texts},
            null_token=settings.null_token,
            source_kinds={name: form for name, form in forms.items() if FORMS[form].part_loader is None},
        )

    def train_on(*names: str) -> PreTrainedTokenizerBase:
        # If the target has a separate tokenizer, train it also on the source texts that the model learns to write.
        rows = training_rows if names == (target,) else plain_rows(training_rows, recipe.data)
        texts = joint_text([[row[name] for row in rows] for name in names], settings.balance)
        if markers:  # the markers are added below
            texts = [" ".join(word for word in text.split(" ") if word not in markers) for text in texts]
        languages = set().union(*map(recipe.data.languages_of, names))
        return train_tokenizer(
            texts,
            settings.kind,
            settings.vocab_size,
            null_token=settings.null_token,
            romanize=not languages.isdisjoint(settings.romanize),
            decode_cyrillic=target in names and not recipe.data.languages_of(target).isdisjoint(settings.romanize),
            mask_tokens=recipe.data.placeholders is not None,
        )

    if recipe.init_from is not None:
        processor = load_processor(recipe.init_from)
        separate = {name: own for name, own in processor.source_tokenizers.items() if name in sources}
        if separate and (lacking := [name for name in sources if name not in separate]):
            raise ValueError(
                f"model.init_from is {recipe.init_from!r}, whose sources have tokenizers of their own, and it has none "
                f"for {', '.join(lacking)}"
            )
        return build(processor.tokenizer, separate)
    if settings.load is not None:
        folder = Path(settings.load)
        if not (folder / "target").is_dir():
            return build(load_auto("AutoTokenizer", folder), {})
        loaded = {name: load_auto("AutoTokenizer", folder / name) for name in (*sources, "target")}
        return build(loaded.pop("target"), loaded)
    if not settings.separate:
        return build(train_on(*sources, target), {})
    return build(train_on(target), {name: train_on(name) for name in sources})


def add_markers(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> None:
    """Add tokens that occur in texts, such as `<de>`, to a tokenizer.

    Args:
        tokenizer: The tokenizer.
        tokens: The tokens. They do not become special tokens, because these are not recognized within texts.
    """
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])


def check_mask_tokens(
    recipe: Recipe, own: Mapping[str, PreTrainedTokenizerBase], wrapped: Mapping[str, PreTrainedTokenizerBase]
) -> None:
    """Check that all tokenizers of a run that masks texts have the mask tokens.

    Args:
        recipe: The run's recipe.
        own: Tokenizers that were trained or loaded, by source or `target`.
        wrapped: Tokenizers of wrapped encoders, by source.

    Raises:
        ValueError: If a tokenizer lacks them; the message names the tokenizer and a remedy.
    """
    if missing := [name for name, tokenizer in wrapped.items() if not has_mask_tokens(tokenizer)]:
        raise ValueError(
            f"data.placeholders: the tokenizer of source {missing[0]!r}, a wrapped encoder, lacks the mask tokens, and "
            "its encoder cannot learn them: leave data.placeholders out, or give the source an encoder of the model"
        )
    if missing := [name for name, tokenizer in own.items() if not has_mask_tokens(tokenizer)]:
        key, folder = ("tokenizer.load", recipe.tokenizer.load)
        advice = "train one with `hf-multisource tokenizer --placeholders SYNTAX`, or leave tokenizer.load out"
        if recipe.init_from is not None:
            key, folder = ("model.init_from", recipe.init_from)
            advice = "name a model that was trained with data.placeholders, or leave data.placeholders out"
        raise ValueError(
            f"data.placeholders: the tokenizer of {missing[0]!r} in {key} ({folder}) lacks the mask tokens: {advice}"
        )


def files_of(folder: Path, processor: MultiSourceProcessor) -> list[str]:
    """List the files of a saved processor.

    Args:
        folder: The folder.
        processor: The processor.

    Returns:
        The files' names, relative to the folder.
    """
    parts = [f"{name}_tokenizer" for name in processor.source_tokenizers]
    parts += [f"{name}_processor" for name in processor.source_processors]
    own = ("processor_config.json", "tokenizer.json", "tokenizer_config.json")
    vocabulary = processor.tokenizer.vocab_files_names.values()  # if there is no tokenizer.json
    paths = [folder / name for name in dict.fromkeys((*own, *vocabulary))]
    paths += [path for part in parts for path in sorted((folder / part).iterdir())]
    return [str(path.relative_to(folder)) for path in paths if path.is_file()]


def contents_of(folder: Path, processor: MultiSourceProcessor) -> dict[str, str]:
    """Compute digests of the files of a saved processor.

    Args:
        folder: The folder.
        processor: The processor.

    Returns:
        Digests by file name. They do not change when the processor is loaded and saved again.
    """
    return digests_of(folder, files_of(folder, processor))


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Compute digests of files of tokenizers and preprocessors.

    Args:
        folder: The folder.
        names: The files' names, relative to the folder.

    Returns:
        Digests by file name. Entries about where a tokenizer was loaded from are ignored.
    """
    digests = {}
    for name in names:
        content = (folder / name).read_bytes()
        if name.endswith("tokenizer_config.json"):
            settings = json.loads(content)
            content = json.dumps({key: settings[key] for key in sorted(settings.keys() - ABOUT_THE_FILE)}).encode()
        digests[name] = digest(content)
    return digests


def digest_of_part(processor: MultiSourceProcessor, source: str | None) -> dict[str, str]:
    """Compute digests of the files of a source's tokenizer or preprocessor.

    Args:
        processor: The processor.
        source: Name of the source; None: the tokenizer of the target.

    Returns:
        Digests by file name; empty for a source without preprocessing.
    """
    part: Any = processor.tokenizer if source is None else processor.part_of(source)
    if part is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        part.save_pretrained(folder)
        return digests_of(Path(folder), [path.name for path in Path(folder).iterdir()])


def load_run_processor(folder: Path, files: Sequence[str]) -> MultiSourceProcessor:
    """Load the processor that a run has saved.

    Args:
        folder: The run's folder.
        files: Known names of the processor's files.

    Returns:
        The processor.

    Raises:
        FileNotFoundError: If a file is missing; the message names it.
        ValueError: If a file is damaged.
    """
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"{folder / missing[0]} is missing: the run cannot be resumed without its processor; restore the file"
        )
    try:
        return MultiSourceProcessor.from_pretrained(folder)
    except Exception as error:  # the tokenizers library raises nothing more specific
        raise ValueError(f"{folder}: the processor of the run cannot be loaded: {error}") from error
