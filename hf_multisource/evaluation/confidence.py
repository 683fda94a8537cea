"""Calibrated probability that a translation equals the reference, the text that a person would write.

A logistic regression on three features of a translation gives the probability that its best candidate equals the
reference. The regression is fitted on a development set and stored beside the weights of the model:

    p = 1 / (1 + exp(-(bias + w1 * log_score + w2 * log_gap + w3 * present)))

    log_score  -log(-score), where score is the length-normalized log probability of the best candidate
    log_gap    log(score - score of the second candidate)
    present    number of sources that are present in the row

`w1` and `w2` are constrained to be non-negative, so that p does not fall when the score or the gap rises. On n-best
lists of proto-forms, the logarithms gave a lower Brier score than the plain scores; the text length as a further
feature changed little. The four parameters are fitted with NumPy, because scikit-learn (which needs SciPy) would be a
large dependency for this one function.
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
from hf_multisource.data.normalization import compose
from hf_multisource.evaluation.text_translator import Translation
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.messages import first_line, shown, shown_key
from hf_multisource.source_kinds import is_absent

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

FILE = "confidence.json"  # name of the file in the run folder
FORMAT = 2  # version of the file's format
WEIGHTS = "*.safetensors"
FEATURES = ("log_score", "log_gap", "present")
RISING = (0, 1)  # indices of the features whose weights are constrained to be non-negative: log_score, log_gap
CANDIDATES = 2  # length of the n-best list that the features are computed from
SMALLEST = 1e-4  # lower bound (nats) of -score and gap before taking the logarithm, which is infinite at 0
PENALTY = 1.0  # L2 penalty: factor of half the sum of the squared weights of the standardized features
BIAS_PENALTY = 1e-2  # factor of half the squared bias; keeps the bias finite if all outcomes of a fold are equal
STEPS = 100  # maximum number of steps of Newton's method; 5 to 10 usually suffice
BINS = 10  # number of equal-width bins of the expected calibration error
FOLDS = 10  # number of cross-validation folds; each fold is a block of consecutive rows
LEAST = 20  # minimum number of correct and of incorrect translations that a fit needs
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # thresholds of `Coverage`


@dataclass(frozen=True)
class Coverage:
    """Coverage and accuracy of the translations whose confidence reaches a threshold.

    Args:
        threshold: Smallest confidence of the selected translations.
        rows: Number of selected translations.
        covered: Share of the selected translations among all rows.
        correct: Share of the selected translations that equal the reference; None if none is selected.
    """

    threshold: float
    rows: int
    covered: float
    correct: float | None


@dataclass(frozen=True)
class Quality:
    """Quality of the predicted probabilities on a set of rows.

    Args:
        rows: Number of rows with a reference.
        refused: Number of rows whose translation was refused or has no score. Their probability is 0, and the
            calibration error and the Brier scores leave them out.
        correct: Number of rows whose best candidate equals the reference.
        calibration_error: Expected calibration error, see [`expected_calibration_error`].
        brier: Brier score, see [`brier_score`].
        brier_of_constant: Brier score of a constant probability, the share of correct translations.
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
        num_beams: Beam width of the translations that the model was fitted on; other beam widths give other scores.
        search: Further search settings of these translations, as `Translator.search_settings` returns them.
        weights: One weight for each of `FEATURES`.
        bias: Bias of the logistic regression.
        weights_sha256: Digest of the translation model's weights, as [`digest_weight_files`] computes it.
        facts: Provenance of the model, for information only, except that the service reads the field `syntax`.
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
        """Fit a confidence model and estimate its quality by cross-validation.

        Args:
            rows: Rows of the sources of a development set; a source is absent if it is None, empty or left out.
            translations: The translation of each row, with at least `CANDIDATES` candidates where the beam search finds
                as many.
            references: The text that a person wrote for each row.
            sources: Names of the sources.
            num_beams: Beam width of the translations.
            search: Further search settings of these translations.
            weights_sha256: Digest of the weights that made the translations.
            facts: Further facts about the translations, which the file records.

        Shape:
            rows, translations and references N.

        Returns:
            The model; `facts["cross_validation"]` holds the fields of [`Quality`].

        Raises:
            ValueError: If fewer than `LEAST` translations are correct, or fewer than `LEAST` are incorrect.
        """
        kept = [i for i, translation in enumerate(translations) if has_score(translation)]
        features = np.array([features_of(rows[i], translations[i], sources) for i in kept]).reshape(-1, len(FEATURES))
        outcomes = np.array([is_right(translations[i], references[i]) for i in kept], dtype=np.float64)
        right = int(outcomes.sum())
        if min(right, len(kept) - right) < LEAST:
            raise ValueError(
                f"{right} of {len(kept)} translations equal their references and {len(kept) - right} do not; a "
                f"confidence needs at least {LEAST} of each: give more rows"
                + (", or train the model longer" if right < LEAST else "")
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
        """Load the confidence of a run.

        Args:
            run: Run folder, model folder or Hub id.

        Returns:
            The confidence; None if the folder has none.

        Raises:
            ValueError: If the file is damaged, or belongs to other weights; the message names file and field.
            OSError: If the file cannot be read.
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
        """Write the confidence atomically into the folder of its run.

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
        """Log a warning that names the search settings that differ from those of the calibration.

        Args:
            run: Name of the model in the warning.
            search: The settings of the current search, as `Translator.search_settings` returns them.
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
        """Evaluate the probabilities on rows on which the model was not fitted.

        Args:
            rows: See [`Confidence.fit`].
            translations: See [`Confidence.fit`].
            references: See [`Confidence.fit`].

        Shape:
            rows, translations and references N.

        Returns:
            The quality of the probabilities.

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
        """Return the probability that the best candidate equals the text that a person would write.

        Args:
            row: The sources of the row.
            translation: Translation of the row, from a search with `num_beams` beams and at least `CANDIDATES`
                candidates.

        Returns:
            The probability; 0 for a translation that was refused or whose score is not finite.
        """
        if not has_score(translation):
            return 0.0
        features = features_of(row, translation, self.sources)
        return float(sigmoid(np.array(features) @ np.array(self.weights) + self.bias))


def has_score(translation: Translation) -> bool:
    """Return whether a translation was accepted and its best candidate has a finite score.

    Args:
        translation: The translation.

    Returns:
        True if the features of the translation can be computed.
    """
    return bool(translation.candidates) and math.isfinite(translation.candidates[0].score)


def features_of(row: Mapping[str, str | None], translation: Translation, sources: Sequence[str]) -> tuple[float, ...]:
    """Compute the features of a translation.

    Args:
        row: The sources of the row.
        translation: Translation of the row; [`has_score`] must be true for it.
        sources: Names of the sources.

    Returns:
        One number for each of `FEATURES`. If there is no second candidate, the gap is `SMALLEST`.
    """
    scores = [candidate.score for candidate in translation.candidates[:CANDIDATES]]
    gap = scores[0] - scores[1] if len(scores) > 1 and math.isfinite(scores[1]) else 0.0
    return (
        -math.log(max(-scores[0], SMALLEST)),
        math.log(max(gap, SMALLEST)),
        float(sum(not is_absent(row.get(name)) for name in sources)),
    )


def is_right(translation: Translation, reference: str) -> bool:
    """Return whether the best candidate equals the reference, ignoring white space at both ends and Unicode's form.

    Args:
        translation: The translation; not refused.
        reference: The text that a person wrote.

    Returns:
        True if the two texts are equal.
    """
    return compose(translation.candidates[0].text).strip() == compose(reference).strip()


def sigmoid(values: Array) -> Array:
    """Compute the logistic function without overflow.

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
        rising: Indices of the features whose weights must not be negative.

    Shape:
        features (N, F), outcomes (N,). Returns weights (F,).

    Returns:
        Weights and bias for the unstandardized features.
    """
    scale = features.std(axis=0)
    scale[scale == 0] = 1.0  # a constant feature gets the weight 0
    mean = features.mean(axis=0)
    standard = (features - mean) / scale
    best, least = np.zeros(features.shape[1] + 1), math.inf
    # The optimum under the constraint is the best unconstrained fit on some subset of the features whose constrained
    # weights are non-negative.
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
    """Minimize the penalized loss of a logistic regression by Newton's method with step halving.

    Args:
        features: Standardized features.
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
    """Predict the probability of each row with a model that was fitted on the other folds.

    Args:
        features: The features.
        outcomes: 1 or 0 for each row.

    Shape:
        features (N, F), outcomes (N,). Returns (N,).

    Returns:
        The probabilities. Each fold is a block of consecutive rows, because neighboring rows of a file can resemble
        each other.
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
        The absolute difference between the mean probability and the mean outcome of each bin, averaged over the rows.
    """
    numbers = np.minimum((np.asarray(probabilities) * bins).astype(int), bins - 1)
    sums = np.bincount(numbers, weights=np.asarray(probabilities) - np.asarray(outcomes), minlength=bins)
    return float(np.abs(sums).sum() / len(numbers))


def brier_score(probabilities: Array, outcomes: Array) -> float:
    """Return the Brier score: the mean squared difference between probability and outcome; 0 is best.

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
    """Compute the quality of probabilities.

    Args:
        probabilities: A probability for each row that was not refused.
        outcomes: 1 or 0 for each of these rows.
        refused: Number of further rows, whose translations were refused or have no score.

    Shape:
        probabilities and outcomes (N,).

    Returns:
        The quality of the probabilities.
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
    """Compute a digest of the weights in a folder, independent of how they are sharded into files.

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
                for name in file.keys():  # noqa: SIM118 - the file is not a mapping
                    tensor = file.get_tensor(name)
                    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
                    facts = f"{name}\n{tensor.dtype}\n{tuple(tensor.shape)}\n"
                    digests[name] = hashlib.sha256(facts.encode() + content.tobytes()).hexdigest()
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged: {first_line(error)}") from error
    return hashlib.sha256("".join(digests[name] for name in sorted(digests)).encode()).hexdigest()


def parse_confidence(content: JsonObject, place: str | Path) -> Confidence:
    """Validate the content of a confidence file and build the confidence.

    Args:
        content: The content.
        place: Name of the file in error messages.

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
