"""Load the model of a command, or an ensemble of several models that decode together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_multisource import MultiSourceEnsemble, MultiSourceProcessor
from hf_multisource.data.interfaces import Model
from hf_multisource.evaluation.decoding import load_weights
from hf_multisource.recipes.pretrained import load_config, load_processor
from hf_multisource.recipes.processor import digest_of_part
from hf_multisource.recipes.run_folder import data_of_run


def load_members(
    run: str,
    ensemble: Sequence[str],
    processor: MultiSourceProcessor,
    device: str | None = None,
    optimize: str | None = None,
) -> Model:
    """Load a model or an ensemble of models for decoding.

    Args:
        run: Run folder, model folder or Hub id of the first member, which has encoded the data.
        ensemble: Further members.
        processor: The processor of the first member.
        device: See [`load_weights`].
        optimize: See [`load_weights`].

    Returns:
        The model; a [`MultiSourceEnsemble`] if there are further members.

    Raises:
        ValueError: If a member cannot be loaded, or does not encode texts like the first one; the message names the
            member.
    """
    for name in ensemble:
        check_member(run, processor, name)
    members: list[Any] = [load_weights(name, device, optimize) for name in (run, *ensemble)]
    if not ensemble:
        return members[0]
    together: Any = MultiSourceEnsemble(members)
    return together


def check_member(run: str, processor: MultiSourceProcessor, member: str) -> None:
    """Check that a further member of an ensemble encodes sources and target like the first one.

    Args:
        run: Name of the first member.
        processor: Processor of the first member.
        member: Name of the further member.

    Raises:
        ValueError: If the further member has a source that the first one lacks, differs in a tokenizer, in the
            preprocessing or kind of a source or in the null token, or joins its sources differently. The message names
            both members, and the source or the key of the recipe.
    """
    load_config(member)  # raises an error if `member` is not a model of this package
    own = load_processor(member)
    for name in own.source_names:
        if name not in processor.source_names:
            allowed = ", ".join(processor.source_names)
            raise ValueError(f"{member} reads the source {name!r}; {run}, which encodes the data, has {allowed}")
        if own.kind_of(name) is not processor.kind_of(name) or digest_of_part(own, name) != digest_of_part(
            processor, name
        ):
            raise ValueError(f"{member} encodes the source {name!r} in another way than {run}: they cannot be combined")
    if digest_of_part(own, None) != digest_of_part(processor, None):
        raise ValueError(f"{member} has another tokenizer of the target than {run}: they cannot be combined")
    if own.null_token != processor.null_token:
        raise ValueError(f"{member} has null_token {own.null_token!r}, {run} {processor.null_token!r}")
    first, other = _form_of_rows(run), _form_of_rows(member)
    for key in first.keys() & other.keys():
        if first[key] != other[key]:
            raise ValueError(f"data.{key} is {other[key]} in {member}, {first[key]} in {run}: they cannot be combined")


def _form_of_rows(model: str) -> dict[str, Any]:
    """Return the recipe's settings that decide how rows become model inputs; empty without a recipe."""
    if (data := data_of_run(model)) is None:
        return {}
    order = {"sources": data.sources} if data.concatenate else {}
    return {"mark_sources": data.mark_sources, "reverse": data.reverse, **order}
