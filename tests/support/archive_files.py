"""Archives in memory: zip, tar, ar and Debian packages."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def tarred(files: Mapping[str, bytes], *more: tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar archive, with further members that have no content."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return content.getvalue()


def ar(members: Mapping[str, bytes]) -> bytes:
    """An ar archive."""
    content = b"!<arch>\n"
    for name, data in members.items():
        content += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return content


def debian(data: bytes, name: str = "data.tar.xz") -> bytes:
    """A Debian package whose files are in the member `name`."""
    return ar({"debian-binary": b"2.0\n", "control.tar.xz": b"odd", name: data})
