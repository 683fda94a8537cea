"""Files in folders, zip archives and Debian packages: what is read, and which archives are refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive_files import ar, debian, tarred, zipped
from hf_multisource.data import archives
from hf_multisource.data.archives import ArchiveError, read_files

FILES = {"a/one.txt": b"one", "a/b/two.txt": b"two" * 1000, "three.bin": b"3"}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    "": bytes,
}


def found(place: Path) -> dict[str, bytes]:
    return dict(read_files(place, lambda name: name.endswith(".txt")))


def packed(place: Path, content: bytes) -> Path:
    place.write_bytes(content)
    return place


TEXTS = {name: data for name, data in FILES.items() if name.endswith(".txt")}


def test_wanted_files_of_a_folder_are_read_and_links_are_not_followed(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "in" / "folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "in" / "pipe.txt")
    packed(tmp_path / "in" / "x.zip", zipped({"y.txt": b"y"}))
    assert found(tmp_path / "in") == {**TEXTS, "x.zip/y.txt": b"y"}
    assert list(found(tmp_path / "in")) == ["x.zip/y.txt", "a/one.txt", "a/b/two.txt"]
    assert found(tmp_path / "secret.txt") == {"secret.txt": b"secret"}
    assert found(packed(tmp_path / "a.bin", b"")) == {}


@pytest.mark.parametrize("suffix", [".zip", ".xpi", ".JAR"])
def test_wanted_files_of_a_zip_archive_are_read(tmp_path: Path, suffix: str) -> None:
    assert found(packed(tmp_path / f"a{suffix}", zipped(FILES))) == TEXTS


@pytest.mark.parametrize("suffix", PACKERS)
def test_wanted_files_of_a_debian_package_are_read(tmp_path: Path, suffix: str) -> None:
    link = tarfile.TarInfo("link.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    data = tarred({f"./{name}": data for name, data in FILES.items()} | {"x.xpi": zipped({"y.txt": b"y"})}, link)
    place = packed(tmp_path / "a.deb", debian(PACKERS[suffix](data), f"data.tar{suffix}"))
    assert found(place) == {**TEXTS, "x.xpi/y.txt": b"y"}


def test_archives_are_read_two_deep(tmp_path: Path) -> None:
    inner = zipped({"x.txt": b"x"})
    assert found(packed(tmp_path / "two.zip", zipped({"in.zip": inner}))) == {"in.zip/x.txt": b"x"}
    with pytest.raises(ArchiveError, match=r"three\.zip:a\.zip:in\.zip: archives in archives are read 2 deep"):
        found(packed(tmp_path / "three.zip", zipped({"a.zip": zipped({"in.zip": inner})})))


@pytest.mark.parametrize("name", ["../x.txt", "/x.txt", "a/../../x.txt", "a\\..\\x.txt"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    for place, content in {"a.zip": zipped({name: b""}), "a.deb": debian(lzma.compress(tarred({name: b""})))}.items():
        with pytest.raises(ArchiveError, match=rf"{place}: the member .* leads out of the archive"):
            found(packed(tmp_path / place, content))


ENCRYPTED = bytearray(zipped({"a.txt": b"a"}))
ENCRYPTED[6] |= 1  # the flag in the header of the member
ENCRYPTED[ENCRYPTED.index(b"PK\x01\x02") + 8] |= 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", b"", r"a\.zip cannot be unpacked: File is not a zip file"),
        ("a.zip", zipped(FILES)[:-30], r"a\.zip cannot be unpacked: File is not a zip file"),
        ("a.zip", bytes(ENCRYPTED), r"a\.zip cannot be unpacked: .* encrypted"),
        ("a.zip", zipped({"a.txt": b"a" * 99}).replace(b"K", b"k", 1), r"a\.zip cannot be unpacked: Bad magic number"),
        ("a.deb", b"", r"a\.deb: not a Debian package: it does not begin with !<arch>"),
        ("a.deb", ar({"debian-binary": b"2.0\n"}), r"a\.deb: damaged: no member data\.tar"),
        ("a.deb", ar({"x": b"12"})[:-1], r"a\.deb: damaged: x has 2 bytes, more than are left"),
        ("a.deb", ar({"x": b"12"}).replace(b"`", b"!"), r"a\.deb: damaged: no header of a member at byte 8"),
        ("a.deb", debian(b"", "data.tar.zst"), r"a\.deb: its files are in data\.tar\.zst; .*dpkg-deb -x"),
        ("a.deb", debian(b"odd"), r"a\.deb cannot be unpacked: "),
        ("a.deb", debian(lzma.compress(tarred(FILES))[:-20]), r"a\.deb cannot be unpacked: "),
        ("a.deb", debian(lzma.compress(b"x" * 5000)), r"a\.deb cannot be unpacked: "),
        ("a.deb", debian(gzip.compress(b"x" * 5000)[:-20], "data.tar.gz"), r"a\.deb cannot be unpacked: "),
    ],
)
def test_a_broken_archive_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(ArchiveError, match=message) as caught:
        found(packed(tmp_path / name, content))
    assert len(str(caught.value).splitlines()) == 1


def test_bounds_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {f"{i}.txt": bytes(1000) for i in range(5)}
    places = {
        "zip": packed(tmp_path / "a.zip", zipped(large)),
        "deb": packed(tmp_path / "a.deb", debian(lzma.compress(tarred(large)))),
        "folder": tmp_path / "in",
    }
    places["folder"].mkdir()
    for name, data in large.items():
        (places["folder"] / name).write_bytes(data)
    for bound, value, message in [
        ("MAX_UNPACKED", 4999, r": more than 4,999 bytes unpacked; that many are allowed"),
        ("MAX_MEMBERS", 4, r": more than 4 (files|members); that many are allowed"),
        ("MAX_MEMBER", 999, r"999"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(archives, bound, value)
            for place in places.values():
                with pytest.raises(ValueError, match=message):
                    found(place)
    assert {name: len(found(place)) for name, place in places.items()} == {"zip": 5, "deb": 5, "folder": 5}
    monkeypatch.setattr(archives, "MAX_ARCHIVE", 100)
    with pytest.raises(ValueError, match="at most 100 are read"):
        found(places["zip"])


def test_a_bomb_is_not_unpacked_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED", 1 << 20)
    monkeypatch.setattr(archives, "MAX_MEMBER", 1 << 20)
    monkeypatch.setattr(archives, "MAX_ARCHIVE", 1 << 20)  # Python reserves as much before it reads a file
    zeros = bytes(64 << 20)
    bombs = [packed(tmp_path / "a.zip", zipped({"a.txt": zeros}))]
    for suffix in (".gz", ".bz2", ".xz"):
        content = debian(PACKERS[suffix](tarred({"a.bin": zeros})), f"data.tar{suffix}")
        bombs.append(packed(tmp_path / f"a{suffix}.deb", content))
    del zeros
    for bomb in bombs:
        tracemalloc.start()
        with pytest.raises(ArchiveError, match=r"1,048,576"):
            found(bomb)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_of_zip_that_unpack_without_a_bound_are_refused(tmp_path: Path, method: int) -> None:
    bomb = packed(tmp_path / "a.zip", zipped({"a.bin": b"", "a.txt": bytes(1 << 20)}, method))
    with pytest.raises(ArchiveError, match=rf"a\.zip:a\.txt is compressed by method {method}; .*stored.*deflated"):
        found(bomb)
    stored = packed(tmp_path / "b.zip", zipped({"a.txt": b"a"}, zipfile.ZIP_STORED))
    assert found(stored) == {"a.txt": b"a"}


def test_headers_of_tar_are_bounded(tmp_path: Path) -> None:
    """Which tarfile reads whole, before the name of the member is known."""
    long = tarred({f"{'long/' * 100}a.txt": b"a"})
    assert [*found(packed(tmp_path / "long.deb", debian(lzma.compress(long)))).values()] == [b"a"]
    link, sparse = tarfile.TarInfo("link"), tarfile.TarInfo("sparse")
    link.type, link.linkname = tarfile.SYMTYPE, "x" * 65536
    sparse.type = tarfile.GNUTYPE_SPARSE
    for odd, message in (
        (tarred({"x" * 65536: b""}), "a name has 65,537 bytes; at most 65,536 are read"),
        (tarred({}, link), "a name has 65,537 bytes; at most 65,536 are read"),
        (tarred({"ä" * 100: b""}, form=tarfile.PAX_FORMAT), "a header of the kind 'x'"),
        (tarred({}, sparse), "a header of the kind 'S'"),
    ):
        with pytest.raises(ArchiveError, match=rf"a\.deb cannot be unpacked: {message}"):
            found(packed(tmp_path / "a.deb", debian(lzma.compress(odd))))


@given(st.data())
def test_damaged_archives_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["a.zip", *(f"a.deb{suffix}" for suffix in PACKERS)]))
    tar = PACKERS.get(name[5:], bytes)(tarred(FILES))
    content = bytearray(zipped(FILES) if name == "a.zip" else debian(tar, f"data.tar{name[5:]}"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    place_of_archive = packed(tmp_path_factory.getbasetemp() / name[:5], bytes(content))
    try:
        found(place_of_archive)
    except ArchiveError as error:
        assert str(error).startswith(str(place_of_archive))
        assert len(str(error).splitlines()) == 1


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent is not there"):
        found(tmp_path / "absent")
