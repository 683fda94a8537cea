"""Pictures, sound and features on disk, and how they come into rows and examples."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow as arrow  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
import pytest
import torch

import kinds
from hf_multisource import DataCollatorForMultiSource
from hf_multisource.data.encoding import MixedExamples, encode_rows
from hf_multisource.data.media import (
    digest,
    find_features,
    find_unreadable,
    forms_of,
    is_absent,
    rates_of,
    read_features,
    read_sound,
)
from hf_multisource.data.rows import Split, check_files, read_split, take_away
from hf_multisource.evaluation.perturbations import make_absent, make_wrong
from kinds import mixed_processor, picture, regions
from runs import write_lines

FORMS = {"image": "picture", "speech": "sound", "regions": "features"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four lines: all there; no picture; only a picture; only features, and a row of zeros for the others."""
    write_lines(tmp_path / "train.en", [kinds.TEXTS[0], kinds.TEXTS[1], "", ""])
    write_lines(tmp_path / "train.cs", ["Jedna.", "Dvě.", "Tři.", "Čtyři."])
    write_lines(tmp_path / "train.image", ["images/0.png", "", "images/1.png", " "])
    write_lines(tmp_path / "train.speech", ["0.wav", "0.wav", "", ""])
    (tmp_path / "images").mkdir()
    for i in range(2):
        picture(i).save(tmp_path / "images" / f"{i}.png")
    (tmp_path / "0.wav").write_bytes(kinds.wav_bytes([0, 16384, -32768]))
    array = np.stack([regions(i, 5) for i in range(4)]).astype(np.float16)
    array[1:3] = 0
    np.save(tmp_path / "train.regions.npy", array)
    return tmp_path


# Features.


def test_features_are_views_of_the_file_and_a_row_of_zeros_is_absent(folder: Path) -> None:
    path = find_features(folder, "train", "regions")
    rows = read_features(path)
    array = np.load(path)
    assert [row is None for row in rows] == [False, True, True, False]
    assert np.array_equal(rows[0], array[0]) and rows[0].dtype == np.float16
    base = rows[3]
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_a_row_whose_first_vector_is_zero_is_there(tmp_path: Path) -> None:
    array = np.zeros((3, 4, 2), np.float32)
    array[1, 3, 1] = -0.5
    np.save(tmp_path / "a.npy", array)
    assert [row is None for row in read_features(tmp_path / "a.npy")] == [True, False, True]


def test_features_may_be_maps_or_compressed_or_lie_in_several_files(tmp_path: Path) -> None:
    maps = np.random.default_rng(0).normal(size=(5, 3, 2, 2))
    (tmp_path / "dev.a").mkdir()
    np.save(tmp_path / "dev.a" / "part-0.npy", maps[:2])
    np.savez_compressed(tmp_path / "dev.a" / "part-1.npz", maps[2:])
    np.savez(tmp_path / "dev.b.npz", maps)
    for name in "ab":
        rows = read_features(find_features(tmp_path, "dev", name))
        assert np.array_equal(np.stack(rows), maps)


def test_bad_features_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"no features of 'a' in .*: looked for dev\.a\.npy, dev\.a\.npz, dev\.a/"
    ):
        find_features(tmp_path, "dev", "a")
    (tmp_path / "dev.a.npy.partial").touch()
    with pytest.raises(FileNotFoundError, match=r"dev\.a\.npy\.partial is not whole: run precompute\.py again"):
        find_features(tmp_path, "dev", "a")
    np.savez(tmp_path / "dev.a.npz", x=np.ones(2), y=np.ones(2))
    np.save(tmp_path / "dev.a.npy", np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"more than once: dev\.a\.npy, dev\.a\.npz"):
        find_features(tmp_path, "dev", "a")
    with pytest.raises(ValueError, match=r"dev\.a\.npz must hold one array, but holds x, y"):
        read_features(tmp_path / "dev.a.npz")
    with pytest.raises(ValueError, match=r"dev\.a\.npy must hold numbers .* but holds float64 of shape \(2, 3\)"):
        read_features(tmp_path / "dev.a.npy")
    (tmp_path / "dev.a.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"dev\.a\.npy: no array of numpy"):
        read_features(tmp_path / "dev.a.npy")
    (tmp_path / "dev.b").mkdir()
    with pytest.raises(ValueError, match=r"dev\.b holds no \.npy or \.npz"):
        read_features(tmp_path / "dev.b")


# Rows.


def test_a_split_has_paths_features_and_texts_side_by_side(folder: Path) -> None:
    split = read_split(str(folder), "train", ["en", "image", "speech", "regions"], "cs", forms=FORMS)
    assert [row["image"] for row in split.rows] == [
        str(folder / "images/0.png"),
        None,
        str(folder / "images/1.png"),
        None,
    ]
    assert [row["speech"] for row in split.rows] == [str(folder / "0.wav")] * 2 + [None] * 2
    assert [row["regions"] is None for row in split.rows] == [False, True, True, False]
    assert split.report["absent.image"] == split.report["absent.regions"] == 2
    only = read_split(str(folder), "train", ["regions"], "cs", forms=FORMS)
    assert (only.kept, only.report["dropped_no_source"]) == ([0, 3], 2)


def test_features_must_be_as_many_as_lines(folder: Path) -> None:
    np.save(folder / "train.regions.npy", np.ones((3, 2, 2)))
    message = r"train\.en has 4 lines, .*train\.regions\.npy has 3 lines; line 4 has no partner in train\.regions\.npy"
    with pytest.raises(ValueError, match=message):
        read_split(str(folder), "train", ["en", "regions"], "cs", forms=FORMS)


def test_tables_hold_paths_bytes_or_what_datasets_makes_of_pictures(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (folder / "images/0.png").read_bytes()
    lines = [{"image": "images/0.png", "cs": "Jedna."}, {"image": None, "en": "a", "cs": "Dvě."}]
    write_lines(folder / "json.jsonl", [json.dumps(line) for line in lines])
    assert read_split(str(folder), "json", ["en", "image"], "cs", forms=FORMS).rows == [
        {"en": None, "image": str(folder / "images/0.png"), "cs": "Jedna."},
        {"en": "a", "image": None, "cs": "Dvě."},
    ]
    columns = {"image": [{"bytes": data, "path": None}, {"bytes": None, "path": "images/0.png"}], "cs": ["1", "2"]}
    parquet.write_table(arrow.table(columns), folder / "table.parquet")
    rows = read_split(str(folder), "table", ["image"], "cs", forms=FORMS).rows
    assert [row["image"] for row in rows] == [{"bytes": data, "path": None}, str(folder / "images/0.png")]
    dataset = datasets.Dataset.from_dict(
        {"image": [str(folder / "images/0.png")], "regions": [[[1.0, 2.0]]], "cs": ["x"]}
    ).cast_column("image", datasets.Image())
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: dataset)
    (row,) = read_split("org/name", "train", ["image", "regions"], "cs", forms=FORMS).rows
    assert row["image"]["path"] == str(folder / "images/0.png")
    assert row["regions"].tolist() == [[1.0, 2.0]]
    with pytest.raises(
        ValueError, match=r"json\.jsonl, line 1: 'image' must be a path, bytes or a dict of them or null"
    ):
        write_lines(folder / "json.jsonl", ['{"image": 3}'])
        read_split(str(folder), "json", ["image"], None, forms=FORMS)


# Files that cannot be read.


def test_what_cannot_be_read_is_found_in_one_pass_and_is_an_error_or_absent(folder: Path) -> None:
    (folder / "images/1.png").write_bytes((folder / "images/1.png").read_bytes()[:-30])
    (folder / "0.wav").unlink()
    sources = ["en", "image", "speech"]
    split = read_split(str(folder), "train", sources, "cs", forms=FORMS)
    forms = {name: FORMS.get(name, "text") for name in sources}
    assert {name: list(places) for name, places in find_unreadable(split.rows, forms).items()} == {
        "image": [2],
        "speech": [0, 1],
    }
    with pytest.raises(
        ValueError,
        match=r"^3 files cannot be read .*: train, line 1, speech: .*0\.wav .*; train, line 3, image: .*1\.png",
    ):
        check_files(split, "train", sources, forms, "error")
    left, lines = check_files(split, "train", sources, forms, "absent")
    assert lines == {"image": [2], "speech": [0, 1]}
    assert left.kept == [0, 1], "line 3 has no other source"
    assert [row["speech"] for row in left.rows] == [None, None]
    assert left.rows[0]["image"] == str(folder / "images/0.png")
    assert left.report == {
        **split.report,
        "rows": 2,
        "dropped_no_source": 2,
        "absent.speech": 2,
        "absent.image": 1,
        "absent.en": 0,
        "unreadable.image": 1,
        "unreadable.speech": 2,
    }
    assert check_files(left, "train", sources, forms, "error") == (left, {})


def test_a_split_of_which_nothing_can_be_read_is_an_error() -> None:
    split = Split([{"image": "a", "cs": "b"}], [3], {"dropped_no_source": 0})
    with pytest.raises(ValueError, match="no row is left of 1: their only sources cannot be read"):
        take_away(split, {"image": [3]}, ["image"])


# Sound.


def test_pcm_files_become_samples_and_channels_are_averaged(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(kinds.wav_bytes([0, 16384, -32768]))
    stereo = kinds.wav_bytes([0, 16384, -32768, 0], rate=16_000, channels=2)
    for value in (
        str(tmp_path / "a.wav"),
        {"bytes": None, "path": str(tmp_path / "a.wav")},
        kinds.wav_bytes([0, 16384, -32768]),
    ):
        sound = read_sound(value)
        assert sound["sampling_rate"] == kinds.RATE
        assert sound["array"].tolist() == [0.0, 0.5, -1.0]
    sound = read_sound({"bytes": stereo, "path": "x"})
    assert (sound["array"].tolist(), sound["sampling_rate"]) == ([0.25, -0.5], 16_000)
    with pytest.raises(ValueError, match=r"nowhere\.wav cannot be read"):
        read_sound(str(tmp_path / "nowhere.wav"))


def test_other_files_are_read_by_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(stream: io.BytesIO, dtype: str, always_2d: bool) -> tuple[np.ndarray, int]:
        if stream.read() != b"sound":
            raise RuntimeError("Format not recognised")
        return np.array([[0.5, 0.0], [1.0, 0.5]], dtype), 22_050

    monkeypatch.setitem(sys.modules, "soundfile", SimpleNamespace(read=read))
    sound = read_sound(b"sound")
    assert (sound["array"].tolist(), sound["sampling_rate"]) == ([0.25, 0.75], 22_050)
    with pytest.raises(ValueError, match="a string of 5 bytes holds no readable sound: Format not recognised"):
        read_sound(b"noise")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=r"is no \.wav of 16 bits, and others need soundfile"):
        read_sound(b"sound")


# Examples.


def test_examples_are_what_the_processor_makes_of_each_row_and_nothing_is_read_before(folder: Path) -> None:
    processor = mixed_processor()
    split = read_split(str(folder), "train", list(kinds.NAMES), "cs", forms=FORMS)
    examples, report = encode_rows(processor, split.rows, "cs", 100)
    assert isinstance(examples, MixedExamples)
    assert report == {"truncated.en": 0, "truncated.cs": 0}
    assert examples.text_lengths == [[len(processor.tokenizer(text)["input_ids"])] for text in kinds.TEXTS] + [[0]] * 2
    assert examples.label_lengths == [len(processor.tokenizer(row["cs"])["input_ids"]) for row in split.rows]
    batch = DataCollatorForMultiSource(processor)(examples)
    sounds = [read_sound(row["speech"]) if row["speech"] else None for row in split.rows]
    columns: dict[str, Any] = {name: [row[name] for row in split.rows] for name in kinds.NAMES}
    expected = processor(
        **{**columns, "speech": sounds}, text_target=[row["cs"] for row in split.rows], return_tensors="pt"
    )
    assert set(batch) == set(expected)
    for key, tensor in batch.items():
        assert torch.equal(tensor, expected[key]), key
    (folder / "images/0.png").unlink()
    assert len(examples) == 4 and examples[1]["labels"]  # the others know nothing of it
    with pytest.raises(ValueError, match=r"images/0\.png"):
        examples[0]


def test_texts_and_targets_are_cut_and_counted_with_pictures_beside_them_too(folder: Path) -> None:
    split = read_split(str(folder), "train", ["en", "image"], "cs", forms=FORMS)
    examples, report = encode_rows(mixed_processor("en", "image"), split.rows, "cs", 3)
    assert report == {"truncated.en": 2, "truncated.cs": 3}
    assert [len(example["labels"]) for example in examples] == [3] * 3
    assert [len(example["input_ids"]) for example in examples] == [3, 3, 0]


def test_a_null_token_stands_for_texts_of_rows_without_any_text(folder: Path) -> None:
    processor = mixed_processor("en", "image", null_token="<NULL>")
    split = read_split(str(folder), "train", ["en", "image"], "cs", forms=FORMS)
    examples, _ = encode_rows(processor, split.rows, "cs", 100)
    null = processor(image=picture(0))["input_ids"]
    assert examples[2]["input_ids"] == null and examples[0]["input_ids"] != null


def test_the_forms_of_a_processor_are_those_of_its_sources() -> None:
    assert forms_of(mixed_processor()) == {"en": "text", **FORMS}


# Wrong and absent sources.


def test_any_value_can_be_made_wrong_or_absent_and_has_a_digest() -> None:
    arrays: list[Any] = [regions(0, 2), regions(1, 2), None, regions(0, 2), regions(2, 2)]
    rows = [{"regions": array, "en": "x"} for array in arrays]
    for draw in range(5):
        wrong = [row["regions"] for row in make_wrong(rows, "regions", 0, draw)]
        assert wrong[2] is None
        there = [i for i in range(5) if i != 2]
        assert not any(np.array_equal(wrong[i], arrays[i]) for i in there)
        assert sorted(digest(wrong[i]) for i in there) == sorted(digest(arrays[i]) for i in there)
    assert make_absent(rows, ["regions"]) == [{"regions": None, "en": "x"}] * 5
    assert digest(arrays[0]) == digest(arrays[3]) != digest(arrays[1])
    assert digest(arrays[0]) != digest(arrays[0].reshape(3, 2)) and digest(b"a") != digest(b"b")
    assert digest({"bytes": b"a", "path": None}) != digest({"bytes": b"b", "path": None})
    assert [is_absent(value) for value in (None, " ", "", {"bytes": None, "path": None})] == [True] * 4
    assert [is_absent(value) for value in ("a", arrays[0], {"bytes": b"a"}, b"a")] == [False] * 4


def test_a_recording_without_samples_is_unreadable() -> None:
    rows = [{"speech": {"array": np.zeros(3), "sampling_rate": 100}}, {"speech": {"array": [], "sampling_rate": 100}}]
    assert find_unreadable(rows, {"speech": "sound"}) == {"speech": {1: "the recording has no samples"}}


def test_a_recording_at_another_rate_than_its_encoder_reads_is_found_with_the_unreadable_ones(folder: Path) -> None:
    path = folder / "44.wav"
    path.write_bytes(kinds.wav_bytes([1, 2, 3], rate=44_100))
    array = {"array": np.zeros(3, np.float32), "sampling_rate": kinds.RATE}
    values: list[Any] = [
        str(folder / "0.wav"),
        str(path),
        array,
        {**array, "sampling_rate": 7},
        path.read_bytes(),
        None,
    ]
    values += [str(path), {"array": array["array"]}]
    rows = [{"speech": value, "en": "a", "noise": value, "cs": "b"} for value in values]
    forms = {"speech": "sound", "noise": "sound", "en": "text"}
    rates = rates_of(mixed_processor())
    assert rates == {"speech": kinds.RATE}
    other = f"has a sampling rate of 44100 Hz, but its encoder needs {kinds.RATE} Hz: resample it"
    no_rate = "the recording is an array without a sampling_rate"
    assert find_unreadable(rows, forms, rates=rates) == {
        "speech": {
            1: f"{path} {other}",
            3: f"the recording {other}".replace("44100", "7"),
            4: f"the recording {other}",
            6: f"{path} {other}",
            7: no_rate,
        },
        "noise": {7: no_rate},
    }
    split = Split(rows, [3, 5, 6, 7, 8, 9, 10, 11], {"dropped_no_source": 0})
    with pytest.raises(
        ValueError, match=rf"^6 files cannot be read .*: train, line 6, speech: .*44\.wav {other}; train"
    ):
        check_files(split, "train", ["en", "speech", "noise"], forms, "error", rates)
    left, lines = check_files(split, "train", ["en", "speech", "noise"], forms, "absent", rates)
    assert lines == {"speech": [5, 7, 8, 10, 11], "noise": [11]}
    assert left.report["unreadable.speech"] == 5
