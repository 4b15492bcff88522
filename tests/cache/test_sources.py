"""Shards by the names of their files, as a list and as rows of a table."""

from pathlib import Path

import numpy as np
import pytest

from smalti.cache.sources import owners_in, shards_of_file
from smalti.catalog.table.shard_table import bytes_of
from tests.catalog.table.tables import many_shards, parsed, table_of

SHARDS = many_shards(120)


@pytest.fixture(params=["table", "tuple"])
def shards(request):
    return parsed(table_of(SHARDS)) if request.param == "table" else tuple(SHARDS)


def test_each_file_name_belongs_to_its_shard_alone(shards):
    owners = owners_in(shards, 1000)
    for place, info in enumerate(SHARDS):
        assert owners(info.raw.basename) == [1000 + place]
    assert owners("shard.1.mds") == owners("") == owners(SHARDS[0].zip.basename) == []


def test_places_in_a_slice_of_a_table_count_from_its_begin():
    part = parsed(table_of(SHARDS))[10:60:5]
    assert owners_in(part, 0)(SHARDS[20].raw.basename) == [2]
    assert owners_in(part, 0)(SHARDS[21].raw.basename) == []


def test_a_file_belongs_to_the_shards_of_all_streams_of_its_set(shards):
    roots = [
        (Path("/c/d"), owners_in(shards, 0)),
        (Path("/c/d"), owners_in(shards, 500)),
        (Path("/c/e"), owners_in(shards, 900)),
    ]
    assert shards_of_file(Path("/c/d") / SHARDS[3].raw.basename, roots) == [3, 503]
    assert shards_of_file(Path("/c/dd") / SHARDS[3].raw.basename, roots) == []


def test_sizes_of_shards_are_those_of_their_files(shards):
    found = bytes_of(shards)
    assert found.raw.tolist() == [info.raw.num_bytes for info in SHARDS]
    assert found.stored.tolist() == [info.stored.num_bytes for info in SHARDS]
    assert found.zipped.tolist() == [info.zip.num_bytes if info.zip else 0 for info in SHARDS]
    assert found.raw.dtype == np.int64
    assert len(bytes_of(()).raw) == 0
