"""BLEU and chrF with bootstrap confidence, as a module that `evaluate` loads from this file.

>>> import evaluate
>>> bleu = evaluate.load("training/metrics/translation_score", "bleu")
>>> bleu.compute(predictions=["Kočka spí."], references=["Kočka spí."], n_bootstrap=100)["score"]
100.0
"""

import os
from typing import Any

import datasets
import evaluate
import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import _bootstrap_resample

METRICS: dict[str, type[BLEU] | type[CHRF]] = {"bleu": BLEU, "chrf": CHRF}

DESCRIPTION = "Corpus BLEU (config `bleu`) or chrF (config `chrf`) by sacrebleu, with bootstrap confidence."

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
    options: Further keywords for `sacrebleu.metrics.BLEU` or `CHRF`, e.g. `tokenize="none"`, `word_order=2`.

Returns:
    dict with `score` (0 to 100), `ci_low` and `ci_high` (95 % interval of the replicas), `sd` (standard deviation
    of the replicas), `signature` (sacrebleu's, with the number of resamples and the seed).
"""


class TranslationScore(evaluate.Metric):  # type: ignore[misc]
    """Corpus BLEU or chrF; the configuration name says which."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in METRICS:
            raise ValueError(
                f"config_name of translation_score is {self.config_name!r}; allowed: {', '.join(METRICS)}, "
                'for example evaluate.load("training/metrics/translation_score", "bleu")'
            )
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
            codebase_urls=["https://github.com/mjpost/sacrebleu"],
        )

    def _compute(
        self,
        predictions: list[str],
        references: list[str],
        n_bootstrap: int = 1000,
        seed: int = 12345,
        options: dict[str, Any] | None = None,
    ) -> dict[str, float | str]:
        if n_bootstrap < 40:
            raise ValueError(f"n_bootstrap is {n_bootstrap}; a 95 % interval needs at least 40 resamples")
        if not predictions:
            raise ValueError("predictions is empty: there is nothing to score")
        metric = METRICS[self.config_name](**(options or {}))
        # What `corpus_score(..., n_bootstrap=)` does, in the same steps; that call keeps the half-width of the interval
        # and throws the replicas away, so neither its ends nor the standard deviation can be had from it.
        stats = metric._extract_corpus_statistics(predictions, [references])
        score = metric._aggregate_and_compute(stats).score
        before = os.environ.get("SACREBLEU_SEED")
        os.environ["SACREBLEU_SEED"] = str(seed)  # sacrebleu takes its seed from nowhere else
        try:
            metric.seed, resampled = _bootstrap_resample(stats, metric, n_bootstrap)
        finally:
            if before is None:
                del os.environ["SACREBLEU_SEED"]
            else:
                os.environ["SACREBLEU_SEED"] = before
        metric.n_bootstrap = n_bootstrap  # read by the signature
        replicas = np.sort([replica.score for replica in resampled])
        cut = n_bootstrap // 40  # 2.5 % at each end, the same places as sacrebleu's
        return {
            "score": score,
            "ci_low": float(replicas[cut]),
            "ci_high": float(replicas[-cut - 1]),
            "sd": float(replicas.std(ddof=1)),
            "signature": str(metric.get_signature()),
        }
