"""Damaged tar and zip archives, and .npy files: the members of the whole archive, or those that all its bytes have."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
import zstandard

from smalti.errors import FormatError
from smalti.format.npy import read_npy
from smalti.sources.archive_members import read_members
from tests.hostile.mutations import mutate_bytes

BLOCK = tarfile.BLOCKSIZE
FILES = {
    "a/1.jpg": bytes(range(256)) * 3, "a/1.cls": b"1", "a/2.jpg": b"", "a/2.cls": b"2" * 512, "b/c/3.jpg": b"x" * 1000,
    f"{'long/' * 30}4.jpg": b"four", "\N{LATIN SMALL LETTER E WITH ACUTE}.txt": b"5",
}  # fmt: skip
_COMPRESS = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "gz twice": lambda data: gzip.compress(data[:1000], mtime=0) + gzip.compress(data[1000:], mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


@dataclass(frozen=True)
class Archive:
    """A damaged archive or array."""

    form: str
    data: bytes


class Archives:
    """Archives with changed bytes; of plain tars also whole blocks that are removed, repeated, moved or zero."""

    name = "archive"

    def make(self, dice: Random) -> Archive:
        """Return one damaged file."""
        form, data = dice.choice(_whole_files())
        if form == "tar" and dice.random() < 0.7:
            return Archive(form, _mutate_blocks(data, dice))
        return Archive(form, mutate_bytes(data, dice))

    def check(self, case: Archive) -> str:
        """Expect a refusal, or nothing lost."""
        try:
            if case.form == "npy":
                array = read_npy(case.data)
                assert array.nbytes <= len(case.data), "more memory than the file has"
                return "read: npy"
            found = [
                (member.name, b"".join(member.content or ()))
                for member in read_members("the archive", io.BytesIO(case.data), is_zip=case.form == "zip")
                if not member.is_folder
            ]
        except FormatError:
            return f"refused: {case.form}"
        except ValueError:
            assert case.form == "npy", "an error without a type"
            return "refused: npy"
        expected = _read_all(case.data) if case.form == "tar" else list(FILES.items())
        assert found == expected, f"{len(found)} members of {len(expected)}, or other ones"
        return f"read: {case.form}"

    def dump(self, case: Archive) -> bytes:
        """Return the damaged file."""
        return case.data


@cache
def _whole_files() -> list[tuple[str, bytes]]:
    tars = [_tar(form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    zips = [_zip(method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
    packed = [(name, compress(tars[1])) for name, compress in _COMPRESS.items()]
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    return [
        *(("tar", data) for data in tars * 3),
        *(("zip", data) for data in zips),
        *packed,
        ("npy", array.getvalue()),
    ]


def _tar(form: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as out:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _zip(method: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as out:
        for name, content in FILES.items():
            out.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return packed.getvalue()


def _mutate_blocks(data: bytes, dice: Random) -> bytes:
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    for _ in range(dice.choice((1, 1, 2))):
        at, number = dice.randrange(len(blocks)), dice.choice((1, 1, 2, 5, 40))
        piece = blocks[at : at + number]
        change = dice.randrange(5)
        if change == 0:
            blocks[at : at + number] = []
        elif change == 1:
            blocks[at : at + number] = [bytes(BLOCK)] * len(piece)
        elif change == 2:
            blocks[at:at] = piece
        elif change == 3:
            blocks[at : at + number] = []
            other = dice.randrange(len(blocks) + 1)
            blocks[other:other] = piece
        else:
            blocks += blocks
        blocks = blocks or [bytes(BLOCK)]
    return b"".join(blocks)


def _read_all(data: bytes) -> list[tuple[str, bytes]]:
    """Return all files of a tar as `tarfile` reads them where it goes on after blocks of zeros."""
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True, encoding="utf-8") as tar:
        return [(info.name, tar.extractfile(info).read() if info.isreg() else b"") for info in tar if not info.isdir()]  # type: ignore[union-attr]
