"""A calibrated probability that a translation is what a person would write.

A logistic regression on three features of a translation gives the probability that its best candidate equals the
reference. It is fitted on a development set, and stored beside the weights:

    p = 1 / (1 + exp(-(bias + w1 * log_score + w2 * log_gap + w3 * present)))

    log_score  -log(-score), where score is the length-normalised log probability of the best candidate
    log_gap    log(score - score of the second candidate)
    present    number of sources that are present in the row

`w1` and `w2` are never negative, so that p does not fall if the score or the gap rises. On n-best lists of proto-forms,
the logarithms gave a lower Brier score than plain scores, and the length of the text as a further feature changed
little. NumPy fits the four numbers; scikit-learn, which needs SciPy, would be a large dependency for this one function.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import snapshot_download
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hf_multisource.data.files import write_json
from hf_multisource.evaluation.text_translator import Translation
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.messages import first_line, shown, shown_key
from hf_multisource.source_kinds import is_absent

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

FILE = "confidence.json"  # in the folder of the run
FORMAT = 2  # version of the file's format
WEIGHTS = "*.safetensors"
FEATURES = ("log_score", "log_gap", "present")
RISING = (0, 1)  # numbers of the features whose weights are never negative
CANDIDATES = 2  # length of the n-best list that the features are computed from
SMALLEST = 1e-4  # log probabilities and gaps below this count as this: their logarithms would be infinite
PENALTY = 1.0  # factor of half the sum of the squared weights of the standardised features, in the loss
BIAS_PENALTY = 1e-2  # factor of half the squared bias: keeps it finite if all outcomes of a fold are the same
STEPS = 100  # of Newton's method; 5 to 10 are usual
BINS = 10  # of equal width, for the expected calibration error
FOLDS = 10  # of the cross-validation, each a block of neighbouring rows
LEAST = 20  # smallest number of right translations, and of wrong ones, that a model is fitted on
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # rows of the table of coverage


@dataclass(frozen=True)
class Coverage:
    """The translations whose confidence reaches a threshold.

    Args:
        threshold: The smallest confidence.
        rows: Number of the translations.
        covered: Share of all rows that they are.
        correct: Share of them that equal the reference; None if there are none.
    """

    threshold: float
    rows: int
    covered: float
    correct: float | None


@dataclass(frozen=True)
class Quality:
    """How good the probabilities are on a set of rows.

    Args:
        rows: Number of rows with a reference.
        refused: Number of rows whose translation was refused or has no score; their probability is 0.
        correct: Number of rows whose best candidate equals the reference.
        calibration_error: As [`expected_calibration_error`] has it.
        brier: As [`brier_score`] has it.
        brier_of_constant: Brier score of the share of right translations as the probability of each.
        coverage: One entry for each of `THRESHOLDS`.
    """

    rows: int
    refused: int
    correct: int
    calibration_error: float
    brier: float
    brier_of_constant: float
    coverage: list[Coverage]


@dataclass(frozen=True)
class Confidence:
    """A calibrated model of the probability that a translation's best candidate equals the reference.

    Args:
        sources: Names of the sources of the translation model.
        num_beams: Beam width of the translations that the model was fitted on; those of another width have other
            scores.
        search: Further settings of their search, as `Translator.search_settings` returns them.
        weights: One for each of `FEATURES`.
        bias: The bias.
        weights_sha256: Digest of the translation model's weights, as [`digest_weight_files`] computes it.
        facts: How the model was made; not read.
    """

    sources: tuple[str, ...]
    num_beams: int
    search: JsonObject
    weights: tuple[float, ...]
    bias: float
    weights_sha256: str
    facts: JsonObject

    @classmethod
    def fit(
        cls,
        rows: Sequence[Mapping[str, str | None]],
        translations: Sequence[Translation],
        references: Sequence[str],
        *,
        sources: Sequence[str],
        num_beams: int,
        search: JsonObject,
        weights_sha256: str,
        facts: JsonObject | None = None,
    ) -> Confidence:
        """Fit a model, and measure it by cross-validation.

        Args:
            rows: Rows of the sources of a development set; None, an empty text or a name left out: absent.
            translations: The translation of each row, with at least `CANDIDATES` candidates if beam search finds them.
            references: The text that a person wrote for each row.
            sources: Names of the sources.
            num_beams: Beam width of the translations.
            search: Further settings of their search.
            weights_sha256: Digest of the weights that made the translations.
            facts: Further facts about the translations, which the file records.

        Shape:
            rows, translations and references N.

        Returns:
            The model; `facts` also holds the fields of [`Quality`], as `cross_validation`.

        Raises:
            ValueError: If fewer than `LEAST` translations are right, or wrong.
        """
        kept = [i for i, translation in enumerate(translations) if has_score(translation)]
        features = np.array([features_of(rows[i], translations[i], sources) for i in kept]).reshape(-1, len(FEATURES))
        outcomes = np.array([is_right(translations[i], references[i]) for i in kept], dtype=np.float64)
        right = int(outcomes.sum())
        if min(right, len(kept) - right) < LEAST:
            raise ValueError(
                f"{right} of {len(kept)} translations equal their references and {len(kept) - right} do not; a "
                f"confidence needs at least {LEAST} of each: give more rows, or train the model longer"
            )
        weights, bias = fit_logistic(features, outcomes, RISING)
        quality = measure(cross_validate(features, outcomes), outcomes, refused=len(rows) - len(kept))
        return cls(
            sources=tuple(sources),
            num_beams=num_beams,
            search=search,
            weights=tuple(weights.tolist()),
            bias=bias,
            weights_sha256=weights_sha256,
            facts={**(facts or {}), "cross_validation": asdict(quality)},
        )

    @classmethod
    def load(cls, run: str | Path) -> Confidence | None:
        """Read the confidence of a run.

        Args:
            run: Run folder, model folder or Hub id.

        Returns:
            The confidence; None if the folder has none.

        Raises:
            ValueError: If the file is damaged, or belongs to other weights; the message names file and field.
            OSError: If it cannot be read.
        """
        folder = Path(run)
        if not folder.is_dir():
            folder = Path(snapshot_download(str(run), allow_patterns=[FILE, WEIGHTS]))
        path = folder / FILE
        if not path.exists():
            return None
        found = parse_confidence(read_json(path), path)
        if found.weights_sha256 != digest_weight_files(folder):
            raise ValueError(
                f"{path} was fitted on other weights than those of {run}: run `hf-multisource calibrate {run}`, or "
                "delete the file"
            )
        return found

    def save(self, run: str | Path) -> Path:
        """Write the confidence into the folder of its run, in one step.

        Args:
            run: The folder.

        Returns:
            The file.
        """
        path = Path(run) / FILE
        content = {
            "format": FORMAT,
            "features": list(FEATURES),
            "weights": list(self.weights),
            "bias": self.bias,
            "sources": list(self.sources),
            "num_beams": self.num_beams,
            "search": self.search,
            "weights_sha256": self.weights_sha256,
            "facts": self.facts,
        }
        write_json(path, content)
        return path

    def warn_of_other_search(self, run: str, search: JsonObject) -> None:
        """Log a warning that names the settings of a search in which it differs from that of the calibration.

        Args:
            run: What to call the model.
            search: The settings, as `Translator.search_settings` returns them.
        """
        names = [name for name in {**self.search, **search} if self.search.get(name) != search.get(name)]
        if names:
            changes = (
                f"{name} was {shown_key(self.search.get(name))}, is {shown_key(search.get(name))}" for name in names
            )
            logger.warning(
                "the confidence of %s was fitted with another search (%s), so its probabilities may be wrong: use "
                "those settings, or run `hf-multisource calibrate` with yours",
                run,
                "; ".join(changes),
            )

    def measure_on(
        self,
        rows: Sequence[Mapping[str, str | None]],
        translations: Sequence[Translation],
        references: Sequence[str],
    ) -> Quality:
        """Measure the probabilities on rows that the model was not fitted on.

        Args:
            rows: As [`Confidence.fit`] has it.
            translations: As [`Confidence.fit`] has it.
            references: As [`Confidence.fit`] has it.

        Shape:
            rows, translations and references N.

        Returns:
            The figures.

        Raises:
            ValueError: If all translations were refused, or have no score.
        """
        kept = [i for i, translation in enumerate(translations) if has_score(translation)]
        if not kept:
            raise ValueError(f"all {len(rows)} translations were refused, so there is no probability to measure")
        probabilities = np.array([self.probability(rows[i], translations[i]) for i in kept])
        outcomes = np.array([is_right(translations[i], references[i]) for i in kept], dtype=np.float64)
        return measure(probabilities, outcomes, refused=len(rows) - len(kept))

    def probability(self, row: Mapping[str, str | None], translation: Translation) -> float:
        """Return the probability that the best candidate equals what a person would write.

        Args:
            row: The sources of the row.
            translation: Its translation, by a search with `num_beams` and at least `CANDIDATES` candidates.

        Returns:
            The probability; 0 for a refused translation, and for one whose score is not a finite number.
        """
        if not has_score(translation):
            return 0.0
        features = features_of(row, translation, self.sources)
        return float(sigmoid(np.array(features) @ np.array(self.weights) + self.bias))


def has_score(translation: Translation) -> bool:
    """Return whether a translation was not refused, and its best candidate has a score that is a finite number.

    Args:
        translation: The translation.

    Returns:
        Whether it has features.
    """
    return bool(translation.candidates) and math.isfinite(translation.candidates[0].score)


def features_of(row: Mapping[str, str | None], translation: Translation, sources: Sequence[str]) -> tuple[float, ...]:
    """Return the features of a translation.

    Args:
        row: The sources of the row.
        translation: Its translation, for which [`has_score`] holds.
        sources: Names of the sources.

    Returns:
        One number for each of `FEATURES`. Without a second candidate, the gap counts as `SMALLEST`.
    """
    scores = [candidate.score for candidate in translation.candidates[:CANDIDATES]]
    gap = scores[0] - scores[1] if len(scores) > 1 and math.isfinite(scores[1]) else 0.0
    return (
        -math.log(max(-scores[0], SMALLEST)),
        math.log(max(gap, SMALLEST)),
        float(sum(not is_absent(row.get(name)) for name in sources)),
    )


def is_right(translation: Translation, reference: str) -> bool:
    """Return whether the best candidate equals the reference, leading and trailing blanks apart.

    Args:
        translation: The translation; not refused.
        reference: The text that a person wrote.

    Returns:
        Whether they are equal.
    """
    return translation.candidates[0].text.strip() == reference.strip()


def sigmoid(values: Array) -> Array:
    """Return the logistic function, without overflow.

    Args:
        values: Any numbers.

    Returns:
        Numbers between 0 and 1, of the same shape.
    """
    return np.exp(-np.logaddexp(0, -values))


def fit_logistic(features: Array, outcomes: Array, rising: Sequence[int] = ()) -> tuple[Array, float]:
    """Fit a logistic regression with a small quadratic penalty.

    Args:
        features: The features.
        outcomes: 1 or 0 for each row.
        rising: Numbers of the features whose weights must not be negative.

    Shape:
        features (N, F), outcomes (N,). Returns weights (F,).

    Returns:
        Weights and bias, for features as they are given.
    """
    scale = features.std(axis=0)
    scale[scale == 0] = 1.0  # a feature that never changes has the weight 0
    mean = features.mean(axis=0)
    standard = (features - mean) / scale
    best, least = np.zeros(features.shape[1] + 1), math.inf
    # The best weights that are not negative are the best ones of the fit that leaves some of the features out.
    for count in range(len(rising) + 1):
        for left_out in combinations(rising, count):
            used = np.array([k not in left_out for k in range(features.shape[1])])
            found, loss = newton(standard[:, used], outcomes)
            weights = np.zeros(features.shape[1] + 1)
            weights[np.append(used, True)] = found
            if loss < least and (weights[list(rising)] >= 0).all():
                best, least = weights, loss
    weights = best[:-1] / scale
    return weights, float(best[-1] - weights @ mean)


def newton(features: Array, outcomes: Array) -> tuple[Array, float]:
    """Minimise the penalised loss of a logistic regression by Newton's method with halved steps.

    Args:
        features: Standardised features.
        outcomes: 1 or 0 for each row.

    Shape:
        features (N, F), outcomes (N,). Returns (F + 1,), the bias last.

    Returns:
        Weights and bias, and the loss.
    """
    design = np.column_stack([features, np.ones(len(features))])
    penalty = np.append(np.full(features.shape[1], PENALTY), BIAS_PENALTY)

    def loss_of(weights: Array) -> float:
        margins = design @ weights
        return float(np.logaddexp(0, margins).sum() - outcomes @ margins + penalty @ weights**2 / 2)

    weights = np.zeros(design.shape[1])
    loss = loss_of(weights)
    for _ in range(STEPS):
        p = sigmoid(design @ weights)
        gradient = design.T @ (p - outcomes) + penalty * weights
        curvature = (design * (p * (1 - p))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        while (found := loss_of(weights - step)) > loss and np.abs(step).max() > 1e-12:
            step = step / 2
        if loss - found < 1e-12 * max(loss, 1.0):
            break
        weights, loss = weights - step, found
    return weights, loss


def cross_validate(features: Array, outcomes: Array) -> Array:
    """Return the probability of each row by a model that was fitted on the other folds.

    Args:
        features: The features.
        outcomes: 1 or 0 for each row.

    Shape:
        features (N, F), outcomes (N,). Returns (N,).

    Returns:
        The probabilities. A fold is a block of neighbouring rows, since neighbours in a file can resemble each other.
    """
    fold = np.arange(len(outcomes)) * FOLDS // max(len(outcomes), 1)
    probabilities = np.zeros(len(outcomes))
    for number in range(FOLDS):
        inside = fold == number
        weights, bias = fit_logistic(features[~inside], outcomes[~inside], RISING)
        probabilities[inside] = sigmoid(features[inside] @ weights + bias)
    return probabilities


def expected_calibration_error(probabilities: Array, outcomes: Array, bins: int = BINS) -> float:
    """Return the expected calibration error (Naeini et al. 2015).

    Args:
        probabilities: A probability for each row.
        outcomes: 1 or 0 for each row.
        bins: Number of bins, of equal width; a probability on a border belongs to the upper bin, and 1 to the last.

    Shape:
        probabilities and outcomes (N,).

    Returns:
        The mean over the rows of the distance between the mean probability and the share of ones of the row's bin.
    """
    numbers = np.minimum((np.asarray(probabilities) * bins).astype(int), bins - 1)
    sums = np.bincount(numbers, weights=np.asarray(probabilities) - np.asarray(outcomes), minlength=bins)
    return float(np.abs(sums).sum() / len(numbers))


def brier_score(probabilities: Array, outcomes: Array) -> float:
    """Return the mean squared difference of probability and outcome; 0 is best.

    Args:
        probabilities: A probability for each row.
        outcomes: 1 or 0 for each row.

    Shape:
        probabilities and outcomes (N,).

    Returns:
        The score.
    """
    return float(np.mean((np.asarray(probabilities) - np.asarray(outcomes)) ** 2))


def measure(probabilities: Array, outcomes: Array, *, refused: int = 0) -> Quality:
    """Measure probabilities.

    Args:
        probabilities: A probability for each row that was not refused.
        outcomes: 1 or 0 for each of these rows.
        refused: Number of further rows, whose translations were refused or have no score.

    Shape:
        probabilities and outcomes (N,).

    Returns:
        The figures.
    """
    rows = len(outcomes) + refused
    coverage = []
    for threshold in THRESHOLDS:
        chosen = outcomes[probabilities >= threshold]
        correct = float(chosen.mean()) if len(chosen) else None
        coverage.append(Coverage(threshold, len(chosen), len(chosen) / rows, correct))
    return Quality(
        rows=rows,
        refused=refused,
        correct=int(outcomes.sum()),
        calibration_error=expected_calibration_error(probabilities, outcomes),
        brier=brier_score(probabilities, outcomes),
        brier_of_constant=brier_score(np.full(len(outcomes), outcomes.mean()), outcomes),
        coverage=coverage,
    )


def digest_weight_files(folder: Path) -> str:
    """Return a digest of the weights in a folder, which does not depend on how files divide them.

    Args:
        folder: Folder of a model.

    Returns:
        SHA-256 of names, types, shapes and values of all tensors, in hexadecimal digits.

    Raises:
        ValueError: If the folder has no safetensors files, or one is damaged; the message names it.
    """
    paths = sorted(folder.glob(WEIGHTS))
    if not paths:
        raise ValueError(f"{folder} has no weights: there is no file {WEIGHTS}")
    digests: dict[str, str] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - the file is no mapping
                    tensor = file.get_tensor(name)
                    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
                    facts = f"{name}\n{tensor.dtype}\n{tuple(tensor.shape)}\n"
                    digests[name] = hashlib.sha256(facts.encode() + content.tobytes()).hexdigest()
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged: {first_line(error)}") from error
    return hashlib.sha256("".join(digests[name] for name in sorted(digests)).encode()).hexdigest()


def parse_confidence(content: JsonObject, place: str | Path) -> Confidence:
    """Check the content of a confidence file.

    Args:
        content: The content.
        place: What to call the file in errors.

    Returns:
        The confidence.

    Raises:
        ValueError: If a field is missing or not allowed; the message names file, field, value and what is allowed.
    """

    def field(name: str, allowed: str, is_allowed: Any) -> Any:
        if name not in content:
            raise ValueError(f"{place} is damaged: {name} is missing; it must be {allowed}")
        if not is_allowed(content[name]):
            raise ValueError(f"{place} is damaged: {name} is {shown(content[name])}; it must be {allowed}")
        return content[name]

    if content.get("format") != FORMAT:
        raise ValueError(
            f"{place}: format is {shown(content.get('format'))}; this version of hf-multisource reads {FORMAT}: run "
            "`hf-multisource calibrate` again"
        )
    field("features", f"the list {', '.join(FEATURES)}", lambda found: found == list(FEATURES))
    count = len(FEATURES)
    weights = field("weights", f"a list of {count} finite numbers", lambda found: _are_numbers(found, count))
    sources = field("sources", "a list of names", lambda found: isinstance(found, list) and all(map(_is_name, found)))
    return Confidence(
        sources=tuple(sources),
        num_beams=field("num_beams", "a whole number from 2", lambda found: type(found) is int and found >= CANDIDATES),
        search=field("search", "an object", lambda found: isinstance(found, dict)),
        weights=tuple(float(weight) for weight in weights),
        bias=float(field("bias", "a finite number", _is_number)),
        weights_sha256=field("weights_sha256", "64 hexadecimal digits", _is_digest),
        facts=field("facts", "an object", lambda found: isinstance(found, dict)),
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # type: ignore[arg-type]


def _are_numbers(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(_is_number, value))


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
