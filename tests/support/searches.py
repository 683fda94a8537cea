"""What the tests of `generate` share: running it, comparing what it finds, and the model's own probabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from builders import END, three_source_batch, three_source_model

START = 2
NextScores = Callable[[tuple[int, ...]], list[float]]
"""From a text to the log-probabilities of what may follow, token by token."""
SEARCHES: dict[str, dict[str, Any]] = {
    "beam": {"num_beams": 4},
    "n-best": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6, "early_stopping": True},
    "normalized": {"num_beams": 4, "num_return_sequences": 2, "length_normalization": 1.0},
    "sampled beams": {"num_beams": 3, "do_sample": True},
    "samples": {"num_return_sequences": 3, "do_sample": True},
    "no cache": {"num_beams": 3, "use_cache": False},
    "static cache": {"num_beams": 3, "cache_implementation": "static"},
    "processed": {"num_beams": 3, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
}
"""Options of `generate` that search in different ways, all with several rows for each example."""


def texts_of(sequences: Tensor, ends: Collection[int] = (END,)) -> list[list[int]]:
    """Generated ids without start and padding."""
    texts = []
    for row in sequences.tolist():
        assert row[0] == START
        end = next((i for i, token in enumerate(row, 1) if token in ends), len(row))
        assert set(row[end:]) <= {0, END}  # beam search fills up with END where the padding id is 0
        texts.append(row[1:end])
    return texts


def generate(
    model: Any, inputs: Mapping[str, Any], ends: Collection[int] = (END,), /, **search: Any
) -> tuple[list[list[int]], Tensor]:
    """Texts, and their scores (log-probabilities of steps if there are no beams)."""
    output = model.generate(
        **inputs,
        **{"max_new_tokens": 7, "do_sample": False, **search},
        output_scores=True,
        return_dict_in_generate=True,
    )
    texts = texts_of(output.sequences, ends)
    beams = getattr(output, "sequences_scores", None)
    if beams is not None:
        return texts, beams
    steps = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    return texts, torch.stack(
        [row[-steps.shape[1] :][: len(text)].sum() for row, text in zip(steps, texts, strict=True)]
    )


def same(actual: tuple[list[list[int]], Tensor], expected: tuple[list[list[int]], Tensor]) -> None:
    """Assert that two searches found the same texts with the same scores."""
    assert actual[0] == expected[0]
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-4, atol=1e-4)


def log_probabilities(model: Any, inputs: Mapping[str, Tensor], texts: Sequence[Sequence[int]]) -> list[float]:
    """Of whole texts, given the sources of one example, by teacher forcing."""
    longest = max(map(len, texts))
    target = torch.tensor([[START, *text, *[0] * (longest - len(text))] for text in texts])
    with torch.no_grad():
        repeated = {key: value.expand(len(texts), -1) for key, value in inputs.items()}
        logs = log_softmax(model(**repeated, decoder_input_ids=target[:, :-1]).logits, dim=-1)
    steps = logs.gather(-1, target[:, 1:, None]).squeeze(-1)
    return [row[: len(text)].sum().item() for row, text in zip(steps, texts, strict=True)]


@cache
def shared_model(combiner: str) -> Any:
    """The model of three sources in float64, made once: a test that changes it makes its own."""
    return three_source_model(combiner).double()


@cache
def next_scores(combiner: str, example: int) -> NextScores:
    """What `shared_model` says of one example; every text is asked for once."""
    model, known = shared_model(combiner), dict[tuple[int, ...], list[float]]()
    encoded = model.get_encoder()(**three_source_batch(examples=[example]))

    @torch.no_grad()
    def ask(text: tuple[int, ...]) -> list[float]:
        if text not in known:
            target = torch.tensor([[START, *text]])
            known[text] = log_softmax(
                model(encoder_outputs=encoded, decoder_input_ids=target).logits[0, -1], -1
            ).tolist()
        return known[text]

    return ask
