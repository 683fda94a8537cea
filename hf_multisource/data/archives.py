"""Read files from a folder, a zip archive (.zip, .xpi, .jar) or a Debian package (.deb) without unpacking it to disk.

Archives may be hostile: their sizes and numbers of members are bounded, names that lead out of the archive are refused,
and links are not followed.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from hf_multisource.messages import first_line, shown_key
from hf_multisource.regular_files import read_regular

ZIP = (".zip", ".xpi", ".jar")
DEB = ".deb"
MAX_ARCHIVE = 256 << 20  # bytes of an archive; packages with the languages of a desktop have about 50 MB
MAX_MEMBER = 64 << 20  # bytes of one unpacked member, which is a catalogue or a zip archive in a package
MAX_UNPACKED = 1 << 30  # bytes that are unpacked in total from one folder or archive
MAX_MEMBERS = 200_000  # members of one folder or archive, including the archives in it
MAX_DEPTH = 2  # levels of nested archives; a .deb contains .xpi files
MAX_XZ_MEMORY = 256 << 20  # bytes; the strongest preset of xz needs 65 MB
MAX_NAME = 64 << 10  # bytes of a long name in a tar archive, which tarfile reads at once; Linux allows paths of 4 kB
# Compression methods for which `zipfile` limits the output of a read. With bzip2 and LZMA, one short read may unpack
# gigabytes.
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Types of tar headers that tarfile reads into lists of unlimited length. dpkg refuses packages with them, too.
UNBOUNDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_SPARSE)
HEADER = 60  # bytes of the header before each member of an ar archive
CHUNK = 1 << 16
BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(NotImplementedError, RuntimeError, OverflowError, IndexError, ValueError, struct.error),
)


class ArchiveError(ValueError):
    """Raised for an archive that is damaged or exceeds a limit; the message names the archive."""


class Budget:
    """Counter of the bytes and members that are unpacked from one folder or archive, including nested archives.

    Args:
        place: The file or folder, for messages.
    """

    def __init__(self, place: str) -> None:
        self.place, self.bytes, self.members = place, 0, 0

    def take(self, size: int) -> None:
        """Count bytes.

        Args:
            size: Number of bytes that were unpacked.

        Raises:
            ArchiveError: If more than `MAX_UNPACKED` bytes have been unpacked.
        """
        self.bytes += size
        if self.bytes > MAX_UNPACKED:
            raise ArchiveError(f"{self.place}: more than {MAX_UNPACKED:,} bytes unpacked; that many are allowed")

    def member(self) -> None:
        """Count a member.

        Raises:
            ArchiveError: If there are more than `MAX_MEMBERS` members.
        """
        self.members += 1
        if self.members > MAX_MEMBERS:
            raise ArchiveError(f"{self.place}: more than {MAX_MEMBERS:,} files; that many are allowed")


def is_archive(name: str) -> bool:
    """Return whether the name of a file is that of an archive.

    Args:
        name: Name of the file.

    Returns:
        Whether the suffix is one of the supported archive formats.
    """
    return PurePosixPath(name).suffix.lower() in (*ZIP, DEB)


def read_files(
    place: Path, wanted: Callable[[str], bool], skipped: Callable[[str], None] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Read selected files of a folder or an archive, including nested archives, or a single file.

    Args:
        place: Folder, archive or file.
        wanted: Function that returns whether to read a file. Its argument is the path in the place.
        skipped: Function that is called for each symbolic link of a folder that has the name of a wanted file or leads
            to a folder. Links are not followed. The argument is the path in the place, which ends with `/` for a
            folder.

    Yields:
        The path in the place, with `/` as separator, and the content. Files of a folder are sorted by name. Members of
        a nested archive have the path of the archive as a prefix.

    Raises:
        FileNotFoundError: If there is no such place.
        OSError: If a file cannot be read.
        ArchiveError: If an archive is damaged, exceeds a limit, or contains a name that leads out of the archive.
    """
    budget = Budget(str(place))
    if not place.exists():
        raise FileNotFoundError(f"{place} is not there")
    if not place.is_dir():
        if is_archive(place.name):
            yield from _unpack(place.name, str(place), read_regular(place, MAX_ARCHIVE), wanted, budget, 1)
        elif wanted(place.name):
            yield place.name, read_regular(place, MAX_MEMBER)
        return
    for folder, folders, names in os.walk(place):
        folders.sort()
        for name in folders:
            if skipped is not None and (Path(folder) / name).is_symlink():
                skipped(f"{(Path(folder) / name).relative_to(place).as_posix()}/")
        for name in sorted(names):
            path = Path(folder) / name
            inner = path.relative_to(place).as_posix()
            budget.member()
            if path.is_symlink() and skipped is not None and (is_archive(name) or wanted(inner)):
                skipped(inner)
            if path.is_symlink() or not path.is_file():
                continue
            if is_archive(name):
                content = read_regular(path, MAX_ARCHIVE)
                for one, data in _unpack(name, str(path), content, wanted, budget, 1):
                    yield f"{inner}/{one}", data
            elif wanted(inner):
                content = read_regular(path, MAX_MEMBER)
                budget.take(len(content))
                yield inner, content


def _unpack(
    name: str, shown: str, content: bytes, wanted: Callable[[str], bool], budget: Budget, depth: int
) -> Iterator[tuple[str, bytes]]:
    """Read the wanted members of an archive and of the archives in it."""
    if depth > MAX_DEPTH:
        raise ArchiveError(f"{shown}: archives in archives are read {MAX_DEPTH} deep, not deeper")
    read = _unzip if PurePosixPath(name).suffix.lower() in ZIP else _undeb

    def chosen(member: str) -> bool:
        return is_archive(member) or wanted(member)

    try:
        for member, data in read(shown, content, chosen, budget):
            if is_archive(member):
                for one, inner in _unpack(member, f"{shown}:{member}", data, wanted, budget, depth + 1):
                    yield f"{member}/{one}", inner
            else:
                yield member, data
    except ArchiveError:
        raise
    except BROKEN as error:
        raise ArchiveError(f"{shown} cannot be unpacked: {first_line(error)}") from error


def _checked(shown: str, name: str) -> str:
    """Return a member's name without `./`; raise ArchiveError if the name leads out of the archive."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ArchiveError(f"{shown}: the member {shown_key(name)} leads out of the archive")
    return str(path)


def _unzip(shown: str, content: bytes, wanted: Callable[[str], bool], budget: Budget) -> Iterator[tuple[str, bytes]]:
    if content.count(b"PK\x01\x02") > MAX_MEMBERS:  # the signature that precedes each member in the central directory
        raise ArchiveError(f"{shown}: more than {MAX_MEMBERS:,} members; that many are allowed")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            budget.member()
            name = _checked(shown, info.filename)
            if info.is_dir() or not wanted(name):
                continue
            if info.compress_type not in ZIP_METHODS:
                raise ArchiveError(
                    f"{shown}:{shown_key(name)} is compressed by method {info.compress_type}; members that are stored "
                    f"or deflated are read. Unpack the archive, and name the folder"
                )
            with archive.open(info) as file:
                yield name, _read_member(file, f"{shown}:{name}", budget)


class _BoundedInfo(tarfile.TarInfo):
    """Header of a tar member that raises `ReadError` if tarfile would read more than `MAX_NAME` bytes for it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _BoundedInfo:
        info = super().frombuf(buf, encoding, errors)
        if info.type in UNBOUNDED:
            raise tarfile.ReadError(
                f"a header of the kind {info.type.decode()!r}, which packages of Debian do not have"
            )
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK) and info.size > MAX_NAME:
            raise tarfile.ReadError(f"a name has {info.size:,} bytes; at most {MAX_NAME:,} are read")
        return info


def _undeb(shown: str, content: bytes, wanted: Callable[[str], bool], budget: Budget) -> Iterator[tuple[str, bytes]]:
    name, data = _deb_data(shown, content)
    stream = _Unpacked(name, data, shown, budget)
    with tarfile.open(  # type: ignore[call-overload]
        fileobj=stream, mode="r|", bufsize=CHUNK, tarinfo=_BoundedInfo
    ) as archive:
        for info in archive:
            budget.member()
            archive.members = []  # tarfile collects all members otherwise  # type: ignore[attr-defined]
            member = _checked(shown, info.name)
            if info.isreg() and wanted(member):
                if info.size > MAX_MEMBER:
                    raise ArchiveError(_too_large(f"{shown}:{member}"))
                file = archive.extractfile(info)
                assert file is not None
                yield member, file.read()


def _deb_data(shown: str, content: bytes) -> tuple[str, bytes]:
    """Return name and content of the member `data.tar*` of a package, which is an ar archive."""
    place = len(b"!<arch>\n")
    if content[:place] != b"!<arch>\n":
        raise ArchiveError(f"{shown}: not a Debian package: it does not begin with !<arch>")
    while place + HEADER <= len(content):
        name = content[place : place + 16].decode("latin-1").strip().removesuffix("/")
        digits = content[place + 48 : place + 58].strip()
        if not digits.isdigit() or content[place + 58 : place + HEADER] != b"`\n":
            raise ArchiveError(f"{shown}: damaged: no header of a member at byte {place:,}")
        start, size = place + HEADER, int(digits)
        if start + size > len(content):
            raise ArchiveError(f"{shown}: damaged: {shown_key(name)} has {size:,} bytes, more than are left")
        if name.startswith("data.tar"):
            return name, content[start : start + size]
        place = start + size + size % 2
    raise ArchiveError(f"{shown}: damaged: no member data.tar")


class _Decompressor(Protocol):
    """Interface of the incremental decompressors of bz2 and lzma."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gunzip:
    """Incremental gzip decompressor with the interface of the decompressors of bz2 and lzma."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self.inner.eof

    @property
    def needs_input(self) -> bool:
        return not self.inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self.inner.decompress(self.inner.unconsumed_tail + data, max_length)


class _Unpacked:
    """Stream that decompresses a member as it is read, and counts the decompressed bytes."""

    def __init__(self, name: str, data: bytes, shown: str, budget: Budget) -> None:
        self.data, self.place, self.budget = data, 0, budget
        suffix = name.removeprefix("data.tar")
        self.decompressor: _Decompressor | None
        if suffix == ".xz":
            self.decompressor = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY)
        elif suffix == ".gz":
            self.decompressor = _Gunzip()
        elif suffix == ".bz2":
            self.decompressor = bz2.BZ2Decompressor()
        elif suffix == "":
            self.decompressor = None
        else:
            raise ArchiveError(
                f"{shown}: its files are in {shown_key(name)}; data.tar, .gz, .bz2 and .xz are read. "
                f"Unpack it by `dpkg-deb -x`, and name the folder"
            )

    def read(self, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the stream."""
        found = bytearray()
        while len(found) < size:
            if self.decompressor is None:
                piece = self.data[self.place : self.place + size]
                self.place += len(piece)
                found += piece
                break
            if self.decompressor.eof:
                break
            data = b""
            if self.decompressor.needs_input:
                data = self.data[self.place : self.place + CHUNK]
                self.place += len(data)
                if not data:
                    raise EOFError("the compressed data end too early")
            found += self.decompressor.decompress(data, max_length=size - len(found))
        self.budget.take(len(found))
        return bytes(found)


def _read_member(file: IO[bytes], shown: str, budget: Budget) -> bytes:
    content = file.read(MAX_MEMBER + 1)
    if len(content) > MAX_MEMBER:
        raise ArchiveError(_too_large(shown))
    budget.take(len(content))
    return content


def _too_large(shown: str) -> str:
    return f"{shown} has more than {MAX_MEMBER:,} bytes unpacked; that many are allowed"
