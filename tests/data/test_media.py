"""Pictures, sound and features on disk, and how they come into rows and examples."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch

import kinds
from hf_multisource import DataCollatorForMultiSource, sounds
from hf_multisource.data.encoding import MixedExamples, encode_rows
from hf_multisource.data.media import (
    digest,
    find_features,
    find_unreadable,
    forms_of,
    read_features,
)
from hf_multisource.data.rows import Split, check_files, read_split, take_away
from hf_multisource.evaluation.decoding import Search, decode_window
from hf_multisource.evaluation.perturbations import make_absent, make_wrong
from hf_multisource.evaluation.translating import read_rows, rows_from_files
from hf_multisource.sounds import read_sound
from hf_multisource.source_kinds import is_absent
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


def test_numbers_in_the_names_of_parts_are_compared_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "dev.a").mkdir()
    for i in range(12):
        np.save(tmp_path / "dev.a" / f"part{i}.npy", np.full((1, 2, 3), i + 1.0, np.float32))
    assert [row[0, 0] for row in read_features(tmp_path / "dev.a")] == list(range(1, 13))


def test_bad_features_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"no features of 'a' in .*: looked for dev\.a\.npy, dev\.a\.npz, dev\.a/"
    ):
        find_features(tmp_path, "dev", "a")
    (tmp_path / "dev.a.npy.partial").touch()
    with pytest.raises(FileNotFoundError, match=r"dev\.a\.npy\.partial is not whole: run hf-multisource precompute"):
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


def lying_header(shape: str, kind: str = "<f4") -> bytes:
    """The header of an array, and four numbers."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n" + bytes(16)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lying_header("(2, 1, 2)"), None),
        (
            lying_header("(5, 0, 3)"),
            "has a dimension without numbers: its shape is (5, 0, 3); a row of zeros says absent",
        ),
        (lying_header("(5, 3, 0)"), "has a dimension without numbers: its shape is (5, 3, 0)"),
        (lying_header("(5, 3, 0, 2)"), "has a dimension without numbers"),
        (lying_header("(-1, 2, 2)"), "has a dimension without numbers"),
        (lying_header("(1000000, 1000000, 1000)"), "is not whole: an array of shape (1000000, 1000000, 1000) has"),
        (lying_header(f"({10**30}, 2, 2)"), "is not whole: "),
        (lying_header("(2, 1, 2)", "|O"), "must hold numbers (N, S, F) or maps (N, F, H, W), but holds object"),
        (lying_header("(2, 1, 2)", "<c8"), "must hold numbers (N, S, F) or maps (N, F, H, W), but holds complex64"),
        (lying_header("(2, 1, 'a')"), ": no array of numpy: "),
        (lying_header("(2, 1, 2)")[:50], ": no array of numpy: "),
        (lying_header("(" * 60), ": no array of numpy: "),
        (b"", ": no array of numpy: "),
    ],
)
def test_the_header_of_an_array_is_checked_before_the_array_is_read(
    name: str, content: bytes, message: str | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    if path.suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", content)
    else:
        path.write_bytes(content)
    if message is None:
        assert read_features(path) == [None, None]
        return
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}')}.*{re.escape(message)}"):
        read_features(path)


def test_a_compressed_array_may_not_grow_out_of_proportion(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as stream:
        stream.write(lying_header("(17, 1024, 1024)")[:128])
        for _ in range(17):
            stream.write(bytes(2**22))
    assert path.stat().st_size < 100_000
    with pytest.raises(
        ValueError, match=r"a\.npz has 69,\d+ bytes and would grow to 71,303,296 or more; .*: save it as \.npy"
    ):
        read_features(path)


def test_damaged_zip_files_are_named(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", np.arange(24.0).reshape(2, 3, 4))
    whole = (tmp_path / "whole.npz").read_bytes()
    encrypted = bytearray(whole)
    encrypted[6] |= 1
    encrypted[whole.rindex(b"PK\x01\x02") + 8] |= 1
    unknown = bytearray(whole)
    unknown[whole.rindex(b"PK\x01\x02") + 10] = 77
    damaged = whole[:60] + bytes(60) + whole[120:]
    for content in (b"", whole[:50], whole[:-30], damaged, bytes(encrypted), bytes(unknown), b"PK\x05\x06" + bytes(18)):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz(: no array of numpy: .|.* must hold one array, but holds none)"):
            read_features(tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", np.ones((1, 1, 1)))
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npy").read_bytes())
    (tmp_path / "a.npy").write_bytes(whole)
    for name in ("a.npz", "a.npy"):  # each is of the other kind
        with pytest.raises(ValueError, match=f"{name}: no array of numpy: "):
            read_features(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_features_are_regular_files(tmp_path: Path) -> None:
    for name in ("pipe.npy", "pipe.npz"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(OSError, match=f"{name} is not a regular file"):
            read_features(tmp_path / name)


def test_features_without_numbers_are_absent_or_refused() -> None:
    processor = mixed_processor("en", "regions")
    for shape in ((0, 3), (0, 0), (3, 0, 2), (3, 2, 0)):
        assert processor(en="a", regions=np.zeros(shape))["regions_input_features"] is None
    for shape in ((3, 0), (0, 3, 2)):
        with pytest.raises(ValueError, match=r"^source 'regions' of example 0 has \d vectors of no numbers\."):
            processor(en="a", regions=np.zeros(shape))


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


def test_paths_are_joined_and_absent_values_stay_wherever_they_come_from(folder: Path) -> None:
    forms = {"image": FORMS["image"]}
    files = rows_from_files({"image": str(folder / "train.image")}, forms)
    lines = [f"{one}\t{two}" for one, two in zip("abcd", ["images/0.png", "", "images/1.png", " "], strict=True)]
    write_lines(folder / "table.txt", lines)
    job: Any = SimpleNamespace(files={}, table=str(folder / "table.txt"), jsonl=False, unreadable="error")
    tables = read_rows(job, ["en", "image"], forms, {})
    split = read_split(str(folder), "train", ["en", "image"], "cs", forms=forms).rows
    paths = [str(folder / "images/0.png"), str(folder / "images/1.png")]
    for rows in (files, tables, split):
        assert [row["image"] for row in rows if not is_absent(row["image"])] == paths


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


class SoundFile:
    """What soundfile gives for the one recording that is used here, in another format than WAV."""

    frames, channels, samplerate = 2, 2, 22_050

    def __init__(self, stream: io.BytesIO) -> None:
        if stream.read() != b"fLaC sound":
            raise RuntimeError("Format not recognized")

    def __enter__(self) -> SoundFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, dtype: str, always_2d: bool) -> np.ndarray:
        assert always_2d
        return np.array([[0.5, 0.0], [1.0, 0.5]], dtype)


def test_other_files_are_read_by_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", SimpleNamespace(SoundFile=SoundFile))
    sound = read_sound(b"fLaC sound")
    assert (sound["array"].tolist(), sound["sampling_rate"]) == ([0.25, 0.75], 22_050)
    with pytest.raises(ValueError, match="a string of 5 bytes holds no readable sound: Format not recognized"):
        read_sound(b"noise")
    monkeypatch.setattr(SoundFile, "frames", 2**25 + 1)
    with pytest.raises(ValueError, match="a string of 10 bytes has 67,108,866 samples; at most 67,108,864 are read"):
        read_sound(b"fLaC sound")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=r"is no \.wav of 16 bits, and others need soundfile"):
        read_sound(b"fLaC sound")


WAV = kinds.wav_bytes([0, 16384, -32768])


def changed(place: int, value: bytes) -> bytes:
    """The recording with other bytes at a place of its header."""
    return WAV[:place] + value + WAV[place + len(value) :]


@pytest.mark.parametrize("soundfile", [None, SimpleNamespace(SoundFile=SoundFile)])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WAV[:4], "the WAV file ends before its samples"),
        (WAV[:10], "the WAV file ends before its samples"),
        (WAV[:30], "the WAV file ends before its samples"),
        (WAV[:43], "the WAV file ends before its samples"),
        (WAV[:45], "the WAV file is cut off: it has 1 of 6 bytes of samples"),
        (changed(34, b"\x18")[:45], "the WAV file is cut off: it has 1 of 6 bytes of samples"),
        (changed(12, b"junk"), "the WAV file does not say in which form its samples are"),
        (changed(20, b"\xee\xee"), "the WAV file does not say in which form its samples are"),
        (changed(22, b"\0\0"), "the WAV file has 0 channels, "),
        (changed(24, b"\0\0\0\0"), "the WAV file has 1 channels, 0 Hz"),
        (changed(32, b"\x07"), "the WAV file has 1 channels, .* and 7 bytes a frame"),
        (b"<html>404</html>", "it begins like no known kind of recording|Format not recognized"),
        (b"", "it begins like no known kind of recording|Format not recognized"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "it begins like no known kind of recording|Format not recognized"),
    ],
)
def test_broken_recordings_are_unreadable_with_and_without_soundfile(
    content: bytes, message: str, soundfile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", soundfile)
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.wav holds no readable sound: ({message})"):
        read_sound(str(tmp_path / "a.wav"))
    rows = [{"speech": content or b"-"}, {"speech": WAV}]
    assert list(find_unreadable(rows, {"speech": "sound"})["speech"]) == [0]


def test_a_wav_file_of_another_encoding_needs_soundfile_and_an_unknown_length_is_read_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read_sound(changed(40, b"\xff\xff\xff\xff"))["array"].tolist() == [0.0, 0.5, -1.0]
    extensible = WAV[:16] + b"\x28\0\0\0\xfe\xff" + WAV[22:36] + b"\x16\0\x10\0\0\0\0\0\x01\0" + bytes(14) + WAV[36:]
    assert read_sound(extensible)["array"].tolist() == [0.0, 0.5, -1.0]
    odd = WAV[:12] + b"note\x03\0\0\0abc\0" + WAV[12:]
    assert read_sound(odd)["array"].tolist() == [0.0, 0.5, -1.0]
    with pytest.raises(ValueError, match="has no samples"):
        read_sound(changed(40, b"\0\0\0\0")[:44])
    monkeypatch.setitem(sys.modules, "soundfile", None)
    for other in (changed(20, b"\x03"), changed(34, b"\x18")):
        with pytest.raises(ImportError, match="others need soundfile"):
            read_sound(other)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_recordings_are_regular_files_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    with (tmp_path / "big.wav").open("wb") as file:
        file.truncate(2**40)
    for path in (tmp_path / "pipe.wav", "/dev/zero"):
        with pytest.raises(ValueError, match=f"^{path} cannot be read: .* is not a regular file"):
            read_sound(path)
    with pytest.raises(ValueError, match=r"big\.wav cannot be read: .*; at most 268,435,456 are read"):
        read_sound(tmp_path / "big.wav")
    with pytest.raises(ValueError, match="cannot be read: embedded null byte"):
        read_sound("a\0b")
    monkeypatch.setattr(sounds, "MAX_SAMPLES", 2)
    with pytest.raises(ValueError, match="a string of 50 bytes has 3 samples; at most 2 are read"):
        read_sound(WAV)
    for value in (3, {"path": 3}, {"x": 1}):
        with pytest.raises(ValueError, match="a recording must be a path, bytes, or a dict of them; got"):
            read_sound(value)


def test_an_example_that_is_encoded_later_has_its_number() -> None:
    rows: list[Any] = [{"en": "a", "regions": regions(i, 2)} for i in range(4)]
    rows[3]["regions"][1, 2] = np.nan
    examples, _ = encode_rows(mixed_processor("en", "regions"), rows, None, 9)
    for index in (3, -1):
        with pytest.raises(ValueError, match=r"^source 'regions' of example 3 holds .* at \[1, 2\]"):
            examples[index]


def test_an_example_that_is_decoded_has_the_number_of_its_line() -> None:
    rows: list[Any] = [{"en": "a", "regions": regions(0, 2)}, {"en": None, "regions": None}]
    rows += [{"en": "a b", "regions": regions(i, 2)} for i in range(2)]
    rows[3]["regions"][1, 2] = np.nan
    nothing: Any = None
    with pytest.raises(ValueError, match=r"^source 'regions' of example 13 holds"):  # before the model is called
        decode_window(nothing, mixed_processor("en", "regions"), rows, Search(num_beams=1), batch_size=4, first=10)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_numbers_that_are_not_finite_are_found_with_their_place(number: float) -> None:
    processor = mixed_processor()
    samples = np.zeros(processor.source_processors["speech"].sampling_rate)
    samples[7] = number
    array = regions(0, 5).astype(np.float64)
    array[2, 1] = number
    sound = {"array": samples, "sampling_rate": kinds.RATE}
    for value in (samples, sound):
        with pytest.raises(
            ValueError, match=r"^source 'speech' of example 1 holds .* at \[7\]; all numbers must be finite"
        ):
            processor(en=["a", "b"], speech=[None, value])
    with pytest.raises(ValueError, match=r"^source 'regions' of example 0 holds .* at \[2, 1\]; all numbers must be"):
        processor(en=["a"], regions=[array])
    found = find_unreadable([{"speech": sound}], {"speech": "sound"})
    assert found["speech"][0].startswith("the recording holds ")


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
    assert [len(example["input_ids"] or ()) for example in examples] == [3, 3, 0]


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


@pytest.mark.parametrize("array", [["x"], [None], [True], np.zeros(2, complex)], ids=repr)
def test_a_recording_that_is_no_array_of_numbers_is_unreadable(array: Any) -> None:
    with pytest.raises(ValueError, match="the recording must be an array of numbers; got "):
        read_sound({"array": array, "sampling_rate": 100})


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
    parts = mixed_processor().source_processors
    other = f"has a sampling rate of 44100 Hz, but its encoder needs {kinds.RATE} Hz: resample it"
    no_rate = "the recording is an array without a sampling_rate"
    assert find_unreadable(rows, forms, parts=parts) == {
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
        check_files(split, "train", ["en", "speech", "noise"], forms, "error", parts)
    left, lines = check_files(split, "train", ["en", "speech", "noise"], forms, "absent", parts)
    assert lines == {"speech": [5, 7, 8, 10, 11], "noise": [11]}
    assert left.report["unreadable.speech"] == 5
