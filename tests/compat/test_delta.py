"""Delta tables: the rows of the newest version, without those of removed files."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from smalti.compat.petastorm import make_batch_reader, make_spark_converter
from smalti.compat.petastorm.reading import parquet as parquet_set
from smalti.errors import CursorError, FormatError, MissingDependency, StoreNotFound
from smalti.storage import LocalStore, ObjectInfo
from tests.compat.parquet_files import url

PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}
VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}
IN_A_FILE = {"storageType": "u", "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA", "offset": 1, "sizeInBytes": 36}


@pytest.fixture
def deltalake():
    return pytest.importorskip("deltalake", reason="deltalake is not installed")


@pytest.fixture
def table(deltalake, tmp_path):
    """Rows 0 to 9, then 10 to 19; then 5 is deleted, which replaces the first file."""
    root = tmp_path / "table"
    deltalake.write_deltalake(root, pa.table({"id": range(10)}))
    deltalake.write_deltalake(root, pa.table({"id": range(10, 20)}), mode="append")
    deltalake.DeltaTable(root).delete("id = 5")
    return root


def ids(where, **options):
    with make_batch_reader(where, **options) as reader:
        return sorted(int(number) for batch in reader for number in batch.id)


LEFT = [number for number in range(20) if number != 5]


def test_rows_of_removed_files_are_not_read(table):
    assert len(list(table.glob("*.parquet"))) == 3
    assert ids(url(table)) == LEFT


def test_a_pyarrow_file_system_reads_the_log_too(table):
    assert ids(str(table), filesystem=LocalFileSystem()) == LEFT


def test_a_checkpoint_replaces_the_entries_before_it(deltalake, table):
    deltalake.DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    deltalake.write_deltalake(table, pa.table({"id": [20]}), mode="append")
    assert ids(url(table)) == [*LEFT, 20]


def test_partition_columns_are_those_of_the_folders(deltalake, tmp_path):
    root = tmp_path / "days"
    rows = pa.table({"id": [1, 2, 3], "day": ["a b", "c%d", None]})
    deltalake.write_deltalake(root, rows, partition_by="day")
    with make_batch_reader(url(root), shuffle_row_groups=False) as reader:
        (batch,) = list(reader)
    found = dict(zip(batch.id.tolist(), batch.day.tolist(), strict=True))
    assert found == {1: "a b", 2: "c%d", 3: None}


def test_a_converter_of_a_path_has_the_live_rows(table):
    converter = make_spark_converter(url(table))
    assert len(converter) == 19
    assert len(converter.file_urls) == 2
    assert ids(converter.file_urls) == LEFT


def test_a_state_is_of_the_version_that_was_read(deltalake, table):
    with make_batch_reader(url(table), batch_size=4) as reader:
        next(reader)
        state = reader.state_dict()
    deltalake.write_deltalake(table, pa.table({"id": [20]}), mode="append")
    with make_batch_reader(url(table), batch_size=4) as reader, pytest.raises(CursorError, match="digest"):
        reader.load_state_dict(state)


def test_a_live_file_that_is_gone_is_named(table):
    for path in table.glob("*.parquet"):
        path.unlink()
    with pytest.raises(StoreNotFound, match=r"\.parquet does not exist"):
        ids(url(table))


def test_without_deltalake_the_error_names_the_package(tmp_path, monkeypatch):
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("{}")
    imported = __import__
    monkeypatch.setattr(parquet_set, "import_module", lambda name: imported("no_such_module"))
    with pytest.raises(MissingDependency, match=r"pip install 'smalti\[delta\]'"):
        make_batch_reader(url(tmp_path))


def write_log(root, *adds, protocol=PLAIN, configuration=None, columns=()):
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"} if configuration else {}
    field = {"name": "id", "type": "long", "nullable": True, "metadata": mapped}
    days = [field | {"name": name, "type": "string"} for name in columns]
    schema = json.dumps({"type": "struct", "fields": [field, *days]})
    about = {
        "id": "e27de66c-7700-4355-b48f-902bcc28c99d",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": list(columns),
        "configuration": configuration or {},
    }
    each = {"partitionValues": dict.fromkeys(columns, "a"), "size": 9, "modificationTime": 1, "dataChange": True}
    entries = [{"protocol": protocol}, {"metaData": about}, *({"add": each | add} for add in adds)]
    (root / "_delta_log").mkdir()
    (root / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, entries)))


REFUSED = {
    "deletion vectors": (
        [{"path": "a.parquet", "deletionVector": IN_A_FILE | {"cardinality": 2}}],
        {"protocol": VECTORS},
        "deleted by deletion vectors.*PURGE",
    ),
    "column mapping": (
        [{"path": "a.parquet"}],
        {
            "protocol": {"minReaderVersion": 2, "minWriterVersion": 5},
            "configuration": {"delta.columnMapping.mode": "id"},
        },
        "maps names of columns",
    ),
    "a file of another table": ([{"path": "s3://other/a.parquet"}], {}, "s3://other/a.parquet .*shallow clone"),
    "a file above the folder": ([{"path": "x/%2E%2E/../a.parquet"}], {}, "not in its folder"),
    "folders without values": ([{"path": "x7/a.parquet"}], {"columns": ["day"]}, "not in folders of the partition"),
    "a managed log": (
        [],
        {
            "protocol": VECTORS | {"readerFeatures": ["catalogManaged"], "writerFeatures": ["catalogManaged"]},
        },
        "log cannot be read",
    ),
}


@pytest.mark.usefixtures("deltalake")
@pytest.mark.parametrize("case", REFUSED)
def test_a_table_whose_rows_are_not_those_of_its_files_is_refused(tmp_path, case):
    adds, options, message = REFUSED[case]
    write_log(tmp_path, *adds, **options)
    with pytest.raises(FormatError, match=message):
        make_batch_reader(url(tmp_path))


@pytest.mark.usefixtures("deltalake")
@pytest.mark.parametrize("name", [f"{0:020}.json", "_last_checkpoint"])
def test_a_damaged_log_is_an_error_that_says_so(table, name):
    (table / "_delta_log" / name).write_text('{"prot')
    with pytest.raises(FormatError, match=r"log cannot be read|_last_checkpoint is damaged"):
        make_batch_reader(url(table))


@pytest.mark.usefixtures("deltalake")
def test_paths_of_the_log_are_decoded_once_as_spark_encodes_them(tmp_path):
    (tmp_path / "day=a b").mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "day=a b" / "50%.parquet")
    write_log(tmp_path, {"path": "day=a%20b/50%25.parquet"}, columns=["day"])
    assert ids(url(tmp_path)) == [1, 2]


class Hostile(LocalStore):
    """A store that lists a file of the log with a path that leads out of every folder."""

    def list(self, prefix=""):
        return [*super().list(prefix), ObjectInfo("_delta_log/../../evil.json", 3, "")]

    def get_range(self, key, begin, end):
        assert ".." not in key
        return super().get_range(key, begin, end)


def test_the_log_is_copied_into_its_own_folder_only(table):
    source = Hostile(str(table))
    assert len(parquet_set.live_files(source, source.list())) == 2
