"""A wrong value in any row of a long table is found by column; valid tables are not refused."""

from dataclasses import replace
from hashlib import sha256
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from smalti.catalog.table.arrow import emit_table, parse_table
from smalti.catalog.table.shard_table import sizes_of
from smalti.errors import IndexFileError
from smalti.format import FileInfo, Schema, ShardInfo
from tests.catalog.table.tables import MANY, SCHEMA, bytes_of, edited, file, many_shards, parsed, shard, table_of

PLACES = (1, 16_382, 16_384, MANY - 1)


@pytest.fixture(scope="module")
def table():
    return table_of(many_shards())


WRONG = [
    {"samples": -1}, {"samples": 10**6}, {"samples": None}, {"samples": 1 << 62}, {"schema": 1}, {"schema": -1},
    {"schema": None}, {"raw_name": "../x"}, {"raw_name": "train/w/../x"}, {"raw_name": "train/w/.."},
    {"raw_name": "train/./x"}, {"raw_name": "train/."}, {"raw_name": "train//x"}, {"raw_name": "/train/x"},
    {"raw_name": "train/x/"}, {"raw_name": ""}, {"raw_name": None}, {"raw_name": "train/" + "x" * 1019},
    {"raw_name": "train/x\\y"}, {"raw_name": "train/x\0"}, {"raw_name": "train/é"}, {"raw_name": "train/x y"},
    {"raw_name": "train/@"}, {"raw_name": "train/["}, {"raw_name": "train/`"}, {"raw_name": "train/{"},
    {"raw_name": "train/,"}, {"raw_name": "train/:"}, {"raw_name": "other/x"}, {"raw_name": "train"},
    {"raw_name": "train/w/9/shard.9.mds"}, {"raw_name": "train/w/9/shard.9.mds.zstd"},
    {"raw_bytes": -1}, {"raw_bytes": 1 << 32}, {"raw_bytes": None}, {"raw_bytes": 7, "samples": 1},
    {"raw_hashes": None}, {"raw_hashes": "{}"}, {"raw_hashes": '{"sha1": "' + "g" * 40 + '"}'},
    {"raw_hashes": '{"sha1": "' + "A" * 40 + '"}'}, {"raw_hashes": '{"sha1": "' + "a" * 39 + '"}'},
    {"raw_hashes": '{"xxh64": "' + "a" * 16 + '"}'}, {"raw_hashes": '{"crc32": "00000000"}'}, {"raw_hashes": "[]"},
    {"raw_hashes": '{"sha1": "' + "a" * 40 + '", "xxh64": "' + "a" * 15 + '"'},
    {"raw_hashes": '{"sha1": "' + "a" * 40 + '", "xxh64": "' + "a" * 16 + '" '},
    *({"raw_hashes": f'{{"sha1": "{sha1}", "xxh64": "{xxh64}"}}'} for sha1, xxh64 in (
        ("a" * 39 + "g", "a" * 16), ("a" * 40, "G" + "a" * 15), ("a" * 40, "a" * 15 + "A"), ("a" * 39 + '"', "a" * 16),
    )),
    {"hash_names": "md5"}, {"hash_names": "no"}, {"hash_names": "sha1,sha1"}, {"hash_names": ","},
    {"compression": "lzma"}, {"compression": ""}, {"size_limit": -1}, {"size_limit": 1 << 32}, {"partition": "../x"},
    {"partition": "test"}, {"partition": ""},
]  # fmt: skip


UNUSUAL = [
    {"raw_name": "train/.hidden"}, {"raw_name": "train/a..b"}, {"raw_name": "train/.../x"}, {"raw_name": "train/x."},
    {"raw_name": "train/" + "x" * 1018}, {"raw_name": "train/aZ09._-=/A"}, {"raw_bytes": (1 << 32) - 1},
    {"samples": 0}, {"raw_bytes": 12, "samples": 1}, {"size_limit": None}, {"size_limit": 0},
    {"raw_hashes": '{"sha1":"' + "a" * 40 + '", "xxh64": "' + "a" * 16 + '"}'},
    {"raw_hashes": '{"md5": "' + "a" * 32 + '", "sha1": "' + "a" * 40 + '", "xxh64": "' + "a" * 16 + '"}'},
    {"partition": None}, {"hash_names": None}, {"hash_names": "xxh64"},
]  # fmt: skip


def each_with_rows(values, places):
    """Return each value with one of the rows, by turns; with all of them in the nightly run."""
    return [
        pytest.param(value, rows, id=f"{value} {len(rows)}", marks=() if len(rows) == 1 else pytest.mark.nightly)
        for number, value in enumerate(values)
        for rows in ([places[number % len(places)]], places)
    ]


@pytest.mark.parametrize(("values", "rows"), each_with_rows(WRONG, PLACES))
def test_a_wrong_value_is_refused_in_any_row(table, values, rows):
    for row in rows:
        with pytest.raises(IndexFileError):
            parsed(edited(table, row, **values))


WRONG_ZIP = [
    {"zip_name": None}, {"zip_name": "train/../x"}, {"zip_name": "other/x"}, {"zip_bytes": None}, {"zip_bytes": -1},
    {"zip_bytes": (1 << 32) + (1 << 26)}, {"zip_hashes": None}, {"zip_hashes": "{}"}, {"compression": None},
    {"zip_name": "train/w/5/shard.5.mds"}, {"zip_name": "train/w/6/shard.6.mds.zstd"},
]  # fmt: skip


@pytest.mark.parametrize(("values", "rows"), each_with_rows(WRONG_ZIP, (0, 16_383, 16_386)))
def test_a_wrong_value_of_a_compressed_file_is_refused_in_any_row(table, values, rows):
    for row in rows:
        with pytest.raises(IndexFileError):
            parsed(edited(table, row, **values))


def test_a_name_that_two_compressed_files_share_is_refused_however_far_apart(table):
    name = table.column("zip_name")[0].as_py()
    with pytest.raises(IndexFileError, match="listed 2 times"):
        parsed(edited(table, 300, zip_name=name))


def test_a_shard_that_is_compressed_without_saying_how_is_refused(table):
    with pytest.raises(IndexFileError, match="row 7"):
        parsed(edited(table, 7, zip_name="train/x", zip_bytes=1, zip_hashes='{"sha1": "' + "a" * 40 + '"}'))


def test_a_null_among_the_words_is_refused(table):
    """Arrow's other representation of a null: in the dictionary. Smalti writes none."""
    column = table.column("compression").combine_chunks()
    words = pa.array([*column.dictionary.to_pylist(), None], pa.string())
    last = len(words) - 1
    plain = [last if place is None else place for place in column.indices.to_pylist()]
    other = pa.DictionaryArray.from_arrays(pa.array(plain, pa.int32()), words)
    with pytest.raises(IndexFileError, match="'compression' has a null among its words"):
        parsed(table.set_column(table.column_names.index("compression"), "compression", other))


def test_a_very_long_word_that_many_rows_share_is_refused(table):
    other = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array(["x" * 5000]))
    with pytest.raises(IndexFileError, match="more than 4096 bytes"):
        parsed(table.set_column(table.column_names.index("partition"), "partition", other))


@pytest.fixture(scope="module")
def unchanged(table):
    return parsed(table)


@pytest.mark.parametrize(("values", "rows"), each_with_rows(UNUSUAL, (1, 16_385)))
def test_an_unusual_value_is_read_unchanged(table, unchanged, values, rows):
    for row in rows:
        changed = edited(table, row, **values)
        shards = parsed(changed)
        assert shards[row] != unchanged[row]
        name = changed.column("raw_name")[row].as_py()
        assert (shards[row].raw.basename, len(shards)) == (name, MANY)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [50, pytest.param(150, marks=pytest.mark.nightly)])
def test_checks_by_column_accept_the_same_tables_as_checks_row_by_row(rounds):
    """Random damage, compared with tables of one row each, where every row is checked by itself."""
    dice, whole = Random(5), many_shards(60)
    values = [value for each in (*WRONG, *UNUSUAL * 8) for value in each.items()]
    seen = set()
    for _ in range(rounds):
        table = table_of(whole)
        rows = {dice.randrange(60) for _ in range(2)}
        for row in rows:
            table = edited(table, row, **dict([dice.choice(values)]))
        alone = all(_accepts(table.slice(row, 1)) for row in rows)
        names = table.column("raw_name").to_pylist() + table.column("zip_name").drop_null().to_pylist()
        is_distinct = len(set(names)) == len(names)
        assert _accepts(table) == (alone and is_distinct)
        seen.add(_accepts(table))
    assert seen == {True, False}


def _accepts(table):
    try:
        parsed(table)
    except IndexFileError:
        return False
    return True


def test_a_message_names_the_shard(table):
    with pytest.raises(IndexFileError, match=r"shard table table, row 16400.*samples"):
        parsed(edited(table, 16_400, samples=-1))
    with pytest.raises(IndexFileError, match=r"row 16400.*train/\.\./x"):
        parsed(edited(table, 16_400, raw_name="train/../x"))


def test_the_first_shard_of_another_schema_is_refused():
    shards = many_shards(50)
    other = replace(shards[30].schema, names=("id", "u"))
    shards[30] = replace(shards[30], schema=other)
    with pytest.raises(IndexFileError, match=shards[30].stored.basename):
        parsed(table_of(shards))


def test_sets_without_hashes_and_with_several_kinds_of_them_are_read():
    shards = [
        replace(shard(n), raw=FileInfo(f"train/{n}", 9000, {} if n % 2 else file("x", n).hashes), hash_names=())
        for n in range(40)
    ]
    assert parsed(table_of(shards)) == tuple(shards)


def test_columns_in_several_pieces_are_one(table):
    pieces = pa.concat_tables([table.slice(0, 7000), table.slice(7000, 9000), table.slice(16_000)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(pieces, max_chunksize=3000)
    assert parsed(sink.getvalue().to_pybytes()) == tuple(many_shards())


def test_a_column_whose_rows_may_share_one_long_text_is_refused(table):
    name = table.column_names.index("raw_name")
    shared = table.set_column(name, "raw_name", table.column(name).combine_chunks().dictionary_encode())
    with pytest.raises(IndexFileError, match="has the type dictionary"):
        parsed(shared)


def test_bytes_other_than_those_that_were_published_are_refused_before_anything_else(table):
    data = bytes_of(table)
    with pytest.raises(IndexFileError, match="expected sha256"):
        parse_table(data[:-1], sha256=sha256(data).hexdigest(), where="table")


def test_samples_are_those_of_the_column(table):
    sizes = sizes_of(parsed(table))
    assert (sizes.dtype, sizes[:4].tolist(), sizes[1999:2002].tolist()) == (np.int64, [0, 1, 2, 3], [999, 0, 1])


def ascending(count=MANY, *, zipped=False):
    """Return shards whose names have one length and ascend, as those of one writer."""
    names = [f"w/{number // 1000:05}/shard.{number % 1000:05}.mds" for number in range(count)]
    zips = [FileInfo(f"{name}.zstd", 100) if zipped else None for name in names]
    packed = "zstd:7" if zipped else None
    return [ShardInfo(SCHEMA, 1, FileInfo(name, 100), zips[at], packed) for at, name in enumerate(names)]


@pytest.mark.parametrize("zipped", [False, True], ids=["raw", "zip"])
def test_ascending_names_are_accepted(zipped):
    shards = ascending(zipped=zipped)
    assert parsed(table_of(shards)) == tuple(shards)


@pytest.mark.parametrize(
    ("row", "other", "zipped"),
    [
        (1, 0, False), (MANY - 1, MANY - 2, True), (MANY - 1, 0, False), (0, MANY - 1, True),
        (1 << 14, (1 << 14) - 1, False),
    ],
    ids=str,
)  # fmt: skip
def test_a_duplicate_among_ascending_names_is_refused(zipped, row, other):
    shards = ascending(zipped=zipped)
    name = shards[other].raw.basename
    with pytest.raises(IndexFileError, match="listed 2 times"):
        parsed(edited(table_of(shards), row, raw_name=name))


def test_a_raw_file_with_the_name_of_a_compressed_one_is_refused():
    """Each column ascends by itself: `a.zstd` is raw in one row and compressed in another one."""
    shards = [
        ShardInfo(SCHEMA, 1, FileInfo("w/a", 100), FileInfo("w/b", 100), "zstd:7"),
        ShardInfo(SCHEMA, 1, FileInfo("w/b", 100), FileInfo("w/c", 100), "zstd:7"),
    ]
    with pytest.raises(IndexFileError, match="listed 2 times"):
        parsed(table_of(shards))


def test_names_that_descend_or_differ_in_length_are_accepted_without_duplicates():
    shards = [*ascending()[::-1], ShardInfo(SCHEMA, 1, FileInfo("w/short", 100))]
    assert parsed(table_of(shards)) == tuple(shards)


def test_an_unsafe_name_among_many_is_refused():
    table = table_of(ascending())
    for name in ("w/.//x", "w//x", "w/./x", "w/../x", "w/x/", "/w/x", "w/..", "w/x/.", "../x", "x\\y"):
        with pytest.raises(IndexFileError):
            parsed(edited(table, 9, raw_name=name))


def test_columns_that_shards_have_in_common_are_checked_once():
    """Not for each split and limit: with a thousand columns, that would take most of the time of opening a set."""
    table = parsed(emit_table([replace(shard(n, f"split{n}"), size_limit=n) for n in range(50)]))
    known = table.content.files[0].loaded.known
    assert [value for value in known.values() if isinstance(value, Schema)] == [SCHEMA]
