"""The calibrated confidence: fitted on simulated data of known probability, measured, stored and refused."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hf_multisource.evaluation.confidence import (
    FEATURES,
    FILE,
    Array,
    Confidence,
    brier_score,
    cross_validate,
    digest_weight_files,
    expected_calibration_error,
    features_of,
    fit_logistic,
    is_right,
    measure,
    sigmoid,
)
from hf_multisource.evaluation.text_translator import Candidate, Translation

SOURCES = ("en", "de")
SEARCH = {"length_penalty": 1.0, "max_new_tokens": 128, "optimize": None}
ROW = {"en": "open", "de": "öffnen"}
RNG = np.random.default_rng(0)


def translated(*scores: float, text: str = "wócyniś") -> Translation:
    return Translation(tuple(Candidate(f"{text}{'x' * i}", score) for i, score in enumerate(scores)))


def simulate(rows: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Features, the probability of each row by known weights, and outcomes drawn with it."""
    rng = np.random.default_rng(seed)
    features = np.column_stack([rng.normal(2, 1, rows), rng.normal(-1, 2, rows), rng.integers(1, 5, rows)])
    probabilities = sigmoid(features @ np.array([0.9, 0.3, 0.5]) - 3.0)
    return features, probabilities, (rng.random(rows) < probabilities).astype(float)


def naive_calibration_error(probabilities: Array, outcomes: Array, bins: int) -> float:
    error = 0.0
    for k in range(bins):
        rows = [
            i for i, p in enumerate(probabilities) if k / bins <= p < (k + 1) / bins or (p == 1.0 and k == bins - 1)
        ]
        if rows:
            distance = abs(sum(probabilities[i] for i in rows) / len(rows) - sum(outcomes[i] for i in rows) / len(rows))
            error += len(rows) / len(probabilities) * distance
    return error


@pytest.fixture
def fitted() -> Confidence:
    rng = np.random.default_rng(1)
    translations, references = [], []
    for _ in range(400):
        score = -float(rng.exponential(0.3))
        translations.append(translated(score, score - float(rng.exponential(0.5))))
        references.append("wócyniś" if rng.random() < np.exp(3 * score) else "zacyniś")
    return Confidence.fit(
        [ROW] * 400, translations, references, sources=SOURCES, num_beams=5, search=SEARCH, weights_sha256="0" * 64
    )


@pytest.fixture
def run(tmp_path: Path, fitted: Confidence) -> Path:
    save_file({"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    replace(fitted, weights_sha256=digest_weight_files(tmp_path)).save(tmp_path)
    return tmp_path


def test_the_fit_recovers_known_weights_and_probabilities() -> None:
    features, known, outcomes = simulate(20_000)
    weights, bias = fit_logistic(features, outcomes, (0, 1))
    assert weights == pytest.approx([0.9, 0.3, 0.5], abs=0.05)
    assert bias == pytest.approx(-3.0, abs=0.15)
    assert np.abs(sigmoid(features @ weights + bias) - known).max() < 0.03
    assert expected_calibration_error(cross_validate(features, outcomes), outcomes) < 0.02


def test_the_fit_minimizes_its_loss() -> None:
    features, _, outcomes = simulate(300)
    weights, bias = fit_logistic(features, outcomes)
    scale = features.std(axis=0)

    def loss(change: Array) -> float:
        w, b = weights + change[:3] / scale, bias + change[3]
        centerd = b + w @ features.mean(axis=0)
        p = sigmoid(features @ w + b)
        likelihood = np.log(np.where(outcomes == 1, p, 1 - p)).sum()
        return float(((w * scale) ** 2).sum() / 2 + 0.01 * centerd**2 / 2 - likelihood)

    for change in 1e-3 * np.random.default_rng(0).normal(size=(20, 4)):
        assert loss(change) > loss(np.zeros(4))


def test_a_weight_that_must_not_be_negative_becomes_zero_and_the_others_are_fitted_without_it() -> None:
    features, _, outcomes = simulate(2_000)
    turned = features * np.array([1.0, -1.0, 1.0])
    weights, _ = fit_logistic(turned, outcomes, (0, 1))
    without, _ = fit_logistic(features[:, [0, 2]], outcomes)
    assert weights[1] == 0
    assert weights[[0, 2]] == pytest.approx(without)
    assert fit_logistic(turned, outcomes)[0][1] < 0


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_equal_outcomes_and_constant_features_give_finite_weights(outcome: float) -> None:
    features, _, _ = simulate(50)
    features[:, 2] = 4.0
    weights, bias = fit_logistic(features, np.full(50, outcome), (0, 1))
    assert np.isfinite(weights).all()
    assert weights[2] == 0
    assert np.abs(sigmoid(features @ weights + bias) - outcome).max() < 0.1


def test_the_probability_does_not_fall_if_score_or_gap_rises(fitted: Confidence) -> None:
    scores = [-3.0, -1.0, -0.5, -0.1, -0.01, -0.0001, 0.0]
    by_score = [fitted.probability(ROW, translated(score, score - 0.5)) for score in scores]
    by_gap = [fitted.probability(ROW, translated(-0.5, -0.5 - gap)) for gap in (0.0, 0.001, 0.1, 1.0, 9.0)]
    assert by_score == sorted(by_score)
    assert by_gap == sorted(by_gap)
    assert by_score[0] < by_score[-1]
    assert all(0 < p < 1 for p in (*by_score, *by_gap))


def test_a_refused_translation_and_one_without_a_score_have_probability_zero(fitted: Confidence) -> None:
    for refused in (Translation(()), translated(float("nan"), -1.0), translated(float("-inf"))):
        assert fitted.probability(ROW, refused) == 0
    assert fitted.probability(ROW, translated(-0.1)) == fitted.probability(ROW, translated(-0.1, -0.1))


def test_a_translation_is_right_in_any_form_of_unicode() -> None:
    assert is_right(translated(-1.0, text="wócyniś"), f" {unicodedata.normalize('NFD', 'wócyniś')}")
    assert not is_right(translated(-1.0, text="wocyniś"), "wócyniś")


def test_features_count_the_present_sources_and_two_candidates() -> None:
    row = {"en": "open", "de": " ", "fr": "ouvrir"}
    features = features_of(row, translated(-0.5, -0.75, -0.75), ("en", "de", "cs"))
    assert features == pytest.approx((-np.log(0.5), np.log(0.25), 1.0))
    assert len(features) == len(FEATURES)


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_the_calibration_error_equals_a_naive_one(bins: int) -> None:
    probabilities = np.concatenate([RNG.random(200), [0.0, 1.0, 0.5]])
    outcomes = (RNG.random(203) < 0.4).astype(float)
    expected = naive_calibration_error(probabilities, outcomes, bins)
    assert expected_calibration_error(probabilities, outcomes, bins) == pytest.approx(expected)


def test_the_figures_of_a_small_example() -> None:
    probabilities, outcomes = np.array([0.95, 0.85, 0.25, 0.05]), np.array([1.0, 0.0, 1.0, 0.0])
    assert brier_score(probabilities, outcomes) == pytest.approx((0.05**2 + 0.85**2 + 0.75**2 + 0.05**2) / 4)
    quality = measure(probabilities, outcomes, refused=1)
    assert (quality.rows, quality.refused, quality.correct) == (5, 1, 2)
    coverage = {one.threshold: one for one in quality.coverage}
    assert (coverage[0.8].rows, coverage[0.8].covered, coverage[0.8].correct) == (2, 0.4, 0.5)
    assert coverage[0.0].covered == 0.8
    assert quality.brier_of_constant == 0.25


def test_refused_rows_do_not_count_in_the_fit_but_in_the_coverage(fitted: Confidence) -> None:
    quality = fitted.facts["cross_validation"]
    assert quality["rows"] == 400
    assert quality["refused"] == 0
    translations = [translated(-0.1, -0.4), translated(-1.0, -1.1), Translation(()), translated(float("nan"))] * 30
    references = ["wócyniś", "zacyniś", "x", "x"] * 30
    found = Confidence.fit(
        [ROW] * 120, translations, references, sources=SOURCES, num_beams=5, search=SEARCH, weights_sha256="0" * 64
    )
    quality = found.facts["cross_validation"]
    assert (quality["rows"], quality["refused"], quality["correct"]) == (120, 60, 30)
    assert quality["coverage"][0]["covered"] == 0.5
    assert quality["coverage"][5]["correct"] == 1


@pytest.mark.parametrize(
    ("right", "advice"), [(81, "give more rows"), (19, "give more rows, or train the model longer")]
)
def test_too_few_outcomes_of_one_kind_are_refused(right: int, advice: str) -> None:
    translations = [translated(-0.1, -0.2)] * 100
    references = ["wócyniś"] * right + ["x"] * (100 - right)
    message = rf"^{right} of 100 translations equal .* {100 - right} do not; .* at least 20 of each: {advice}$"
    with pytest.raises(ValueError, match=message):
        Confidence.fit(
            [ROW] * 100, translations, references, sources=SOURCES, num_beams=5, search=SEARCH, weights_sha256="0" * 64
        )


def test_a_stored_confidence_gives_the_same_probabilities(run: Path, fitted: Confidence) -> None:
    loaded = Confidence.load(run)
    assert loaded is not None
    assert replace(loaded, weights_sha256=fitted.weights_sha256) == fitted
    one = translated(-0.3, -0.9)
    assert loaded.probability(ROW, one) == fitted.probability(ROW, one)


def test_a_folder_without_the_file_has_no_confidence(tmp_path: Path) -> None:
    assert Confidence.load(tmp_path) is None


def test_a_confidence_of_other_weights_is_refused(run: Path) -> None:
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}, run / "model.safetensors")
    with pytest.raises(ValueError, match=r"confidence\.json was fitted on other weights than those of .*calibrate"):
        Confidence.load(run)


def test_weights_in_several_files_have_the_same_digest(run: Path) -> None:
    whole = digest_weight_files(run)
    (run / "model.safetensors").unlink()
    save_file({"b": torch.zeros(4, dtype=torch.bfloat16)}, run / "model-00001-of-00002.safetensors")
    save_file({"a": torch.ones(2, 3)}, run / "model-00002-of-00002.safetensors")
    assert digest_weight_files(run) == whole
    save_file({"a": torch.ones(3, 2)}, run / "model-00002-of-00002.safetensors")
    assert digest_weight_files(run) != whole


def test_weights_that_are_missing_or_damaged_are_named(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: "):
        Confidence.load(run)
    (run / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="has no weights"):
        Confidence.load(run)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", 1, "format is 1; this version of hf-multisource reads 2"),
        ("search", None, "search is None; it must be an object"),
        ("features", ["log_score"], "features is ['log_score']; it must be the list log_score, log_gap, present"),
        ("weights", [1.0, 2.0], "weights is [1.0, 2.0]; it must be a list of 3 finite numbers"),
        ("weights", [1.0, 2.0, float("nan")], "weights is [1.0, 2.0, nan]; it must be a list of 3 finite numbers"),
        ("bias", None, "bias is None; it must be a finite number"),
        ("bias", 10**400, "bias is an integer of 1329 bits; it must be a finite number"),
        ("sources", "en", "sources is 'en'; it must be a list of names"),
        ("num_beams", 1, "num_beams is 1; it must be a whole number from 2"),
        ("num_beams", True, "num_beams is True; it must be a whole number from 2"),
        ("weights_sha256", "0", "weights_sha256 is '0'; it must be 64 hexadecimal digits"),
        ("facts", [], "facts is []; it must be an object"),
    ],
)
def test_a_damaged_file_is_named_with_its_field(run: Path, field: str, value: object, message: str) -> None:
    content = json.loads((run / FILE).read_text("utf-8"))
    (run / FILE).write_text(json.dumps({**content, field: value}), "utf-8")
    with pytest.raises(ValueError) as error:
        Confidence.load(run)
    assert str(run / FILE) in str(error.value)
    assert message in str(error.value)
    (run / FILE).write_text(json.dumps({key: found for key, found in content.items() if key != field}), "utf-8")
    with pytest.raises(ValueError, match=f"{field} is (missing|None)"):
        Confidence.load(run)


def test_a_file_that_is_cut_off_is_named(run: Path) -> None:
    (run / FILE).write_text((run / FILE).read_text("utf-8")[:-20], "utf-8")
    with pytest.raises(ValueError, match=r"confidence\.json holds no valid JSON"):
        Confidence.load(run)
