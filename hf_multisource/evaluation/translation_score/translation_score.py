"""BLEU, chrF and TER with bootstrap confidence, as a module that `evaluate` loads from this file.

>>> import evaluate
>>> bleu = evaluate.load("hf_multisource/evaluation/translation_score", "bleu")
>>> bleu.compute(predictions=["Kočka spí."], references=["Kočka spí."], n_bootstrap=100)["score"]
100.0
"""

from typing import Any

import datasets
import evaluate

from hf_multisource.metrics.bootstrap import measure_metric
from hf_multisource.metrics.table import METRICS

DESCRIPTION = "A metric of a test set with bootstrap confidence; the config names it: `bleu`, `chrf` or `ter`."

CITATION = """\
@inproceedings{post-2018-call,
    title = "A Call for Clarity in Reporting {BLEU} Scores",
    author = "Post, Matt",
    booktitle = "Proceedings of the Third Conference on Machine Translation: Research Papers",
    year = "2018",
    url = "https://doi.org/10.18653/v1/W18-6319",
}"""

# `evaluate` appends this to the docstring of `compute`, so it must be a section of its own.
INPUTS = """
Args:
    predictions: One hypothesis (str) per sentence.
    references: One reference (str) per sentence.
    n_bootstrap: Number of bootstrap resamples; at least 40, so that the 95 % interval leaves out some.
    seed: Seed of the resampling; sacrebleu's own default.
    options: Further keywords for `sacrebleu.metrics.BLEU`, `CHRF` or `TER`, e.g. `tokenize="none"`, `word_order=2`.

Returns:
    dict with `score`, `ci_low` and `ci_high` (95 % interval of the replicas), `sd` (standard deviation
    of the replicas), `signature` (sacrebleu's, with the number of resamples and the seed).
"""


class TranslationScore(evaluate.Metric):  # type: ignore[misc]
    """Metric for the `evaluate` library; its configuration name selects one of `METRICS`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in METRICS:
            raise ValueError(
                f"config_name of translation_score is {self.config_name!r}; allowed: {', '.join(METRICS)}, "
                'for example evaluate.load("hf_multisource/evaluation/translation_score", "bleu")'
            )
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
            codebase_urls=["https://github.com/mjpost/sacrebleu"],
        )

    def _compute(self, predictions: list[str], references: list[str], **options: Any) -> dict[str, float | str]:
        return measure_metric(self.config_name, predictions, references, **options)
