"""Collect the tokens of a text in the target language, to which decoding can be restricted."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.files import read_lines
from hf_multisource.source_kinds import is_absent

LINES_PER_CALL = 1000  # number of lines per tokenizer call


@lru_cache(maxsize=8)
def target_tokens(processor: MultiSourceProcessor, file: str) -> Tensor:
    """Collect the token ids of a text file, for the argument `shortlist` of `generate`.

    Args:
        processor: Processor whose target tokenizer splits the text.
        file: Text file in the target's language, one sentence per line. The result is cached, so the file is read once.

    Shape:
        (V',), in increasing order.

    Returns:
        The ids of all tokens in the text, and of the end token.

    Raises:
        ValueError: If the text has no tokens, or is not valid text; the message names the file.
    """
    tokenizer = processor.tokenizer
    lines = [line for line in read_lines(Path(file)) if not is_absent(line)]
    found: set[int] = set()
    for start in range(0, len(lines), LINES_PER_CALL):
        some = lines[start : start + LINES_PER_CALL]
        for ids in tokenizer(text_target=some, add_special_tokens=False)[
            "input_ids"
        ]:  # Marian's differ from a source's
            found.update(ids)
    found -= {tokenizer.pad_token_id, tokenizer.unk_token_id}
    if not found:
        raise ValueError(f"shortlist: {file} has no tokens of the target's vocabulary")
    return torch.tensor(sorted({*found, tokenizer.eos_token_id}))
