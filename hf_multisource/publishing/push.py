"""Publish a finished model on the Hub with its processor, model card, and the code that loads it with Transformers.

Model and processor are loaded first, which checks that they can be loaded, and saved to a new folder. Checkpoints,
optimizer states, scores and logs are left out. README.md, the model card, and confidence.json are included if the
folder contains them. The files are searched for secrets, local paths, training state, training text and foreign code
before they are listed or uploaded. All files are uploaded in one commit. After a failed upload the repository is
unchanged, and a second call completes the upload.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from hf_multisource import MultiSourceConfig, MultiSourceProcessor, MultiSourceRNNConfig
from hf_multisource.data.interfaces import Model
from hf_multisource.evaluation.confidence import Confidence, digest_weight_files
from hf_multisource.foreign import load_auto
from hf_multisource.model_card import CARD
from hf_multisource.publishing.scan import check_publishable
from hf_multisource.recipes.shipped import RECIPE


def load(folder: Path) -> tuple[Model, MultiSourceProcessor]:
    """Load the model and the processor to publish.

    Args:
        folder: The run folder.

    Returns:
        Model and processor.

    Raises:
        ValueError: If the run is not finished, weights are missing, or model and processor do not fit.
        OSError: If a file is missing or damaged.
    """
    if not (folder / "config.json").exists():
        raise ValueError(f"{folder} is no folder of a model: it has no config.json")
    if (folder / RECIPE).exists() and not (folder / "train_summary.json").exists():
        raise ValueError(f"{folder} holds a run that is not finished: it has no train_summary.json")
    config = load_auto("AutoConfig", folder)
    if not isinstance(config, MultiSourceConfig | MultiSourceRNNConfig):
        raise ValueError(
            f"{folder} holds a model of model_type {config.model_type!r}, which is none of several sources"
        )
    model = load_auto("AutoModelForSeq2SeqLM", folder, config=config)
    try:
        processor = MultiSourceProcessor.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: its processor cannot be loaded: {error}") from error
    if processor.source_names != model.config.source_names:
        raise ValueError(
            f"{folder}: the processor's sources are {', '.join(processor.source_names)}, "
            f"the model's {', '.join(model.config.source_names)}"
        )
    return model, processor


def size_in_words(size: float) -> str:
    """Return a number of bytes in a readable form."""
    power = next((power for power in range(3) if size < 1000 ** (power + 1)), 3)
    return f"{size / 1000**power:.1f} {('B', 'kB', 'MB', 'GB')[power]}"


def listing(folder: Path) -> str:
    """Return the files of a folder with their sizes, one per line, and the total size."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    lines = [f"{size_in_words(s):>10}  {f.relative_to(folder).as_posix()}" for f, s in zip(files, sizes, strict=True)]
    return "\n".join([*lines, f"{size_in_words(sum(sizes)):>10}  in {len(files)} files"])


def upload(folder: Path, repo: str, private: bool) -> str:
    """Create the repository if it does not exist, and commit all files of a folder to it.

    Args:
        folder: The folder.
        repo: Hub id of the repository.
        private: Whether a new repository is private.

    Returns:
        URL of the commit.

    Raises:
        ConnectionError: If the upload fails for any reason.
    """
    api = HfApi()
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload model, processor and code")
    except Exception as error:  # HTTP library and exceptions depend on the client's version
        raise ConnectionError(f"{repo}: the upload broke off: {error}\nThe same command tries again.") from error
    return str(commit.commit_url)


def publish(run: Path, repo: str, *, push: bool = False, private: bool = False) -> str:
    """List the files that would be published, or publish them.

    Args:
        run: Run folder or model folder.
        repo: Hub id of the repository.
        push: Whether to upload.
        private: Whether a new repository is private.

    Returns:
        The list of the files, and the result of the upload.

    Raises:
        ValueError: If `repo` is not a Hub id, the run cannot be published, or its files contain something that must not
            be published.
    """
    validate_repo_id(repo)
    if "/" not in repo:
        raise ValueError(f"{repo} must have the form ORG/NAME")
    model, processor = load(run)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        if (run / CARD).exists():
            shutil.copy(run / CARD, folder / CARD)
        else:
            made = "hf-multisource card" if (run / RECIPE).exists() else "model.create_card"
            print(f"{run} has no {CARD}, which {made} makes: the model would have no card", file=sys.stderr)
        if confidence := Confidence.load(run):
            facts = {name: fact for name, fact in confidence.facts.items() if name != "command"}  # it may name paths
            replace(confidence, facts=facts, weights_sha256=digest_weight_files(folder)).save(folder)
        check_publishable(folder, run)
        print(f"{repo}{' (private)' if private else ''}:\n{listing(folder)}", flush=True)
        return f"uploaded: {upload(folder, repo, private)}" if push else "Nothing was uploaded; --push does it."
