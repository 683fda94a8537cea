"""Make a model that was trained on an encoder's features read what the encoder reads: pictures, for instance.

    python training/attach_encoder.py RUN ENCODER --source image --out FOLDER

RUN is a folder or Hub id of a model with a source of kind `features`, such as `precompute.py` writes; ENCODER is the
checkpoint that made them. FOLDER receives the model with the encoder in it, frozen, and its processor.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModel

from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor, attach_encoder
from pretrained import form_of, load_part


def main(argv: Sequence[str] | None = None) -> None:
    """Attach; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder or Hub id of a model")
    parser.add_argument("encoder", help="folder or Hub id of an AutoModel")
    parser.add_argument("--source", required=True, help="name of the source")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to; made, or empty")
    args = parser.parse_args(argv)
    if args.out.exists() and any(args.out.iterdir()):
        sys.exit(f"attach_encoder.py: {args.out} is not empty: name another folder")
    try:
        encoder = AutoModel.from_pretrained(args.encoder, use_safetensors=True)
        model: Any = MultiSourceForConditionalGeneration.from_pretrained(args.run)
        old = MultiSourceProcessor.from_pretrained(args.run)
        new = attach_encoder(model, args.source, encoder)
        processor = MultiSourceProcessor(
            old.tokenizer,
            old.source_names,
            old.source_tokenizers,
            {**old.source_processors, args.source: load_part(args.encoder, form_of(encoder.config))},
            [name for name in old.feature_sources if name != args.source],
            old.null_token,
        )
    except (OSError, ValueError) as error:
        sys.exit(f"attach_encoder.py: {error}")
    new.save_pretrained(args.out)
    processor.save_pretrained(args.out)


if __name__ == "__main__":
    main()
