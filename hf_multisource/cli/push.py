"""`hf-multisource push`: publish a finished model on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.publishing.push import publish

NAME = "push"


def push(
    run: Annotated[Path, typer.Argument(help="Run folder or model folder.")],
    repo: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Where to publish it.")],
    upload: Annotated[
        bool, typer.Option("--push", help="Upload; without it, only show what would be uploaded.")
    ] = False,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
) -> None:
    """Publish a finished model with its processor, model card, and the code that loads it with Transformers.

    \b
        hf-multisource push runs/mine org/name            # shows what would be uploaded
        hf-multisource push runs/mine org/name --push

    Checkpoints, optimizer states, scores and logs are not published. All files appear in one commit.
    """
    print(publish(run, repo, push=upload, private=private))


main = make_main(NAME, push)

if __name__ == "__main__":
    main()
