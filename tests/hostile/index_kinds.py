"""Damaged index files, and the guarantees about every one that is accepted."""

import os
from collections.abc import Callable, Sequence
from pathlib import PureWindowsPath
from random import Random
from typing import Any

from smalti.errors import IndexFileError, SmaltiError
from smalti.format import FileInfo, ShardInfo, emit_index, parse_index
from tests.hostile.mutations import mutate_bytes, mutate_json

ROOT = "/data/set"
LARGEST = 2**32 - 1 + 2**26
"""A shard file is below 4 GiB; compression may add a little."""


class Indexes:
    """Index files damaged as JSON, one in ten as bytes."""

    def __init__(self, name: str, texts: Sequence[str], *, parse: Callable[..., Any] = parse_index) -> None:
        self.name = name
        self._texts = texts
        self._parse = parse

    def make(self, dice: Random) -> bytes:
        """Return the bytes of a damaged index file."""
        text = dice.choice(self._texts)
        return mutate_bytes(text.encode(), dice) if dice.random() < 0.1 else mutate_json(text, dice)

    def check(self, case: bytes) -> str:
        """Expect a refusal that names the place, or a valid index."""
        try:
            shards, extra = self._parse(case, where="index.json")
        except IndexFileError as error:
            check_message(error.message, place="index.json")
            return "refused"
        check_shards(shards)
        again, others = parse_index(emit_index(shards, extra), where="index.json")
        assert again == shards, "what was read is not what is written"
        assert others == extra, "the other keys changed"
        return "accepted" if shards else "accepted, empty"

    def dump(self, case: bytes) -> bytes:
        """Return the file itself."""
        return case


def check_message(message: str, *, place: str = "") -> None:
    """Raise `AssertionError` for a message without a place, or whose length the file controls."""
    assert message.startswith(place), f"the message names no place: {message[:100]}"
    assert len(message) < 2000, "the message is as long as an attacker likes"


def check_shards(shards: Sequence[ShardInfo]) -> None:
    """Check everything that readers rely on without checking again.

    Raises:
        AssertionError: Something does not hold.
    """
    names: list[str] = []
    for shard in shards:
        files = {id(file): file for file in (*shard.raw_files, *shard.stored_files)}.values()
        for file in files:
            _check_file(file)
        names += [file.basename for file in files]
        _check_counts(shard)
        _check_schema(shard)
    assert len(set(names)) == len(names), "two files share a name"


def _check_file(file: FileInfo) -> None:
    name = file.basename
    assert isinstance(name, str)
    assert name, "an empty name"
    assert name.isascii(), "a name whose look may deceive"
    assert name.isprintable(), "a name with control characters"
    assert os.path.normpath(os.path.join(ROOT, name)) == f"{ROOT}/{name}", "a name that leaves the root"
    windows = PureWindowsPath(name)
    assert not windows.drive, "a drive"
    assert not windows.root, "an absolute path"
    assert "\\" not in name, "a separator of another system"
    assert type(file.num_bytes) is int
    assert 0 <= file.num_bytes <= LARGEST
    assert all(isinstance(digest, str) for digest in file.hashes.values())


def _check_counts(shard: ShardInfo) -> None:
    assert type(shard.samples) is int
    assert shard.samples >= 0
    table = shard.raw if shard.format == "mds" else shard.meta
    assert table is not None, "a text shard without its table of offsets"
    assert shard.samples == 0 or 8 + 4 * shard.samples <= table.num_bytes, "more samples than the file can hold"
    assert (shard.compression is None) == (shard.zip is None)
    for file in (*shard.raw_files, *shard.stored_files):
        assert set(shard.hash_names) <= set(file.hashes), "a declared hash is missing"


def _check_schema(shard: ShardInfo) -> None:
    names, encodings, sizes = shard.schema.names, shard.schema.encodings, shard.schema.sizes
    assert 1 <= len(names) == len(encodings) == len(sizes) == len(set(names))
    assert all(size is None or (type(size) is int and size > 0) for size in sizes)
    if shard.format == "mds":
        try:
            codecs = shard.schema.codecs(allow_unsafe_types=True)
        except SmaltiError as error:
            raise AssertionError("a column that cannot be decoded was accepted") from error
        assert tuple(codec.size for codec in codecs) == sizes
    else:
        assert set(encodings) <= {"str", "int", "float"}
        assert set(sizes) == {None}
