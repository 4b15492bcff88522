"""smalti.compat.streaming's writers: the bytes of MosaicML's writers, its arguments, attributes and exceptions."""

import json
import shutil
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from smalti.catalog import load_manifest
from smalti.catalog.verify import verify
from smalti.compat.streaming import CSVWriter, JSONWriter, MDSWriter, StreamingDataset, TSVWriter, XSVWriter
from smalti.compat.streaming.base.format.base.writer import JointWriter, SplitWriter, Writer
from smalti.errors import SmaltiError, StoreError
from smalti.format import open_shard
from smalti.format.reading.batch import OpenOptions
from smalti.writer import MDSWriter as NativeWriter
from tests.peer_program import SOURCE, fork_alone, minimal_env, run_alone
from tests.storage.conftest import clean_environment, s3_bucket, s3_server  # noqa: F401 - fixtures

HERE = Path(__file__).parent
PROGRAM = HERE / "written_sets.py"
STUBS = HERE.parents[1] / "golden" / "peer_stubs"
PARTS = ("raw_data", "zip_data", "raw_meta", "zip_meta")
NUM_SETS = 33
ID = {"id": "int"}


@pytest.fixture(scope="module")
def written(peer, tmp_path_factory):
    """Return the folders of the sets that MosaicML's writers and the alias wrote by the same program."""
    python, paths = peer
    there, here = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("here")
    fork_alone(python, paths, [PROGRAM, there])
    alias = [sys.executable, "-W", "ignore", "-m", "smalti.compat.streaming"]
    run_alone([*alias, PROGRAM, here], minimal_env([STUBS, SOURCE]))
    return there, here


def entries(folder):
    """Return the entries of a set's shards with the bytes of the files in place of the folders of their names."""
    found = json.loads((folder / "index.json").read_text())["shards"]
    for entry in found:
        for part in PARTS:
            if entry.get(part):
                path = folder / entry[part].pop("basename")
                content = path.read_bytes() if path.exists() else None  # of compressed files the raw one is not kept
                if content is not None and path.suffix == ".gz":
                    content = content[:4] + content[8:]  # MosaicML puts the time there
                entry[part] |= {"name": path.name, "content": content}
    return found


def write(writer, count=20):
    with writer:
        for i in range(count):
            writer.write({"id": i})
    return writer


@pytest.mark.process
def test_shards_and_index_entries_of_every_encoding_and_format_are_mosaicmls(written):
    there, here = written
    names = sorted(str(path.parent.relative_to(there)) for path in there.rglob("index.json"))
    assert len(names) == NUM_SETS
    assert [name for name in names if entries(there / name) != entries(here / name)] == []


@pytest.mark.process
def test_the_files_of_every_set_are_mosaicmls_by_name_and_place(written):
    there, here = ([str(path.relative_to(root)) for path in sorted(root.rglob("*"))] for root in written)
    assert here == there


@pytest.mark.process
def test_samples_of_every_set_are_read_back(written):
    _, here = written
    counts = {}
    for path in sorted(here.rglob("index.json")):
        if path.parent.name != "custom":  # needs its classes
            manifest = load_manifest(path.parent)
            shards = [shard for shard in manifest.shards if shard.compression is None]
            for info in shards:
                paths = [path.parent / file.basename for file in info.raw_files]
                shard = open_shard(paths, info, OpenOptions(allow_unsafe_types=True, check_config=True))
                assert [len(shard[i]) for i in range(info.samples)] == [len(info.schema.names)] * info.samples
            counts[path.parent.name] = manifest.rows
    assert counts["numbers"] == counts["json_False"] == 12
    assert counts["parts"] == 27
    assert counts["empty"] == 0


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", [MDSWriter, JSONWriter])
def test_without_hashes_xxh3_64_is_recorded_apart_from_the_entries(tmp_path, kind, compression):
    write(kind(columns=ID, out=str(tmp_path), size_limit=200, compression=compression))
    listed = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert {str(entry["hashes"]) for entry in listed} == {"[]"}
    assert {str(entry[part]["hashes"]) for entry in listed for part in PARTS if entry.get(part)} == {"{}"}
    manifest = load_manifest(tmp_path)
    assert {tuple(file.hashes) for shard in manifest.shards for file in shard.stored_files} == {("xxh3_64",)}


def test_a_changed_byte_is_found_although_the_index_lists_no_hash(tmp_path):
    writer = write(MDSWriter(columns=ID, out=str(tmp_path)))
    assert verify(tmp_path).ok
    path = tmp_path / writer.shards[0]["raw_data"]["basename"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert not verify(tmp_path).ok


def test_hashes_that_are_given_are_listed_and_no_others_are_recorded(tmp_path):
    writer = write(MDSWriter(columns=ID, out=str(tmp_path), hashes=["md5", "sha1"]))
    assert set(writer.shards[0]["raw_data"]["hashes"]) == {"md5", "sha1"}
    assert set(load_manifest(tmp_path).shards[0].raw.hashes) == {"md5", "sha1"}


def test_a_tuple_of_hashes_stays_one(tmp_path):
    writer = write(MDSWriter(columns=ID, out=str(tmp_path), hashes=("md5",)))
    assert writer.hashes == ("md5",)
    assert load_manifest(tmp_path).shards[0].hash_names == ("md5",)


@pytest.mark.parametrize("kind", [MDSWriter, JSONWriter])
def test_hashes_and_compression_that_are_set_later_count_from_the_next_shard(tmp_path, kind):
    with kind(columns=ID, out=str(tmp_path), size_limit=None) as writer:
        writer.write({"id": 1})
        writer.flush_shard()
        writer._reset_cache()
        writer.hashes, writer.compression = ["sha1"], "zstd"
        writer.write({"id": 2})
    first, second = load_manifest(tmp_path).shards
    assert (first.hash_names, first.compression) == ((), None)
    assert (second.hash_names, second.compression) == (("sha1",), "zstd")
    assert [sample["id"] for sample in StreamingDataset(local=str(tmp_path), batch_size=1)] == [1, 2]


@pytest.mark.parametrize("keys", [{"hashes": ["crc"]}, {"compression": "zip"}])
def test_unknown_hashes_and_compressions_that_are_set_later_are_refused(tmp_path, keys):
    writer = MDSWriter(columns=ID, out=str(tmp_path))
    writer.write({"id": 1})
    vars(writer).update(keys)
    with pytest.raises(ValueError, match="Invalid"):
        writer.finish()
    writer.cancel_future_jobs()
    assert not (tmp_path / "index.json").exists()


def failed_future():
    future = Future()
    future.set_exception(LookupError("a task"))
    return future


@pytest.mark.parametrize(
    "fail", [lambda w: w.event.set(), lambda w: w.exception_callback(failed_future())], ids=["event", "future"]
)
def test_a_failed_task_of_the_user_ends_the_write_and_publishes_nothing(tmp_path, fail):
    remote = tmp_path / "remote"
    with (  # noqa: PT012 - leaving the writer's block raises
        pytest.raises(StoreError, match="One of the threads failed"),
        MDSWriter(columns=ID, out=(str(tmp_path / "local"), str(remote)), size_limit=200) as writer,
    ):
        for i in range(100):
            writer.write({"id": i})
        fail(writer)
    with pytest.raises(StoreError, match="One of the threads failed"):
        writer.finish()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "local").exists()


BAD_ARGUMENTS = {
    "an unknown argument": (ValueError, "Invalid Writer argument", {"limit": 3}),
    "an unknown compression": (ValueError, "Invalid compression: zip", {"compression": "zip"}),
    "an unknown level": (ValueError, "Invalid compression: zstd:99", {"compression": "zstd:99"}),
    "an unknown hash": (ValueError, "Invalid hash: crc", {"hashes": ["crc"]}),
    "hashes out of order": (ValueError, "unique and in sorted order", {"hashes": ["sha1", "md5"]}),
    "a hash twice": (ValueError, "unique and in sorted order", {"hashes": ["md5", "md5"]}),
    "a negative limit": (ValueError, "greater than zero", {"size_limit": -1}),
    "a limit of 4 GiB": (ValueError, r"less than 2\*\*32", {"size_limit": "4gb"}),
    "a limit that is no size": (ValueError, "Unsupported", {"size_limit": "4 apples"}),
    "three places": (ValueError, "Invalid `out` argument", {"out": ("a", "b", "c")}),
    "an unknown scheme": (ValueError, "Invalid Cloud provider prefix", {"out": "gopher://x"}),
    "an unknown encoding": (TypeError, "encoding `integer` is unsupported", {"columns": {"id": "integer"}}),
    "an unknown encoding, as a ValueError": (ValueError, "integer", {"columns": {"id": "integer"}}),
    "an array of another type": (AssertionError, "int3", {"columns": {"id": "ndarray:int3"}}),
    "no attempt at uploads": (ValueError, "retry", {"retry": 0}),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_the_constructor_refuses(tmp_path, case):
    error, text, arguments = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=text):
        MDSWriter(**{"columns": ID, "out": str(tmp_path / "set"), **arguments})


@pytest.mark.parametrize("make", [JSONWriter, CSVWriter, TSVWriter])
def test_text_formats_refuse_columns_that_lines_cannot_hold(tmp_path, make):
    with pytest.raises(AssertionError, match="bytes"):
        make(columns={"id": "bytes"}, out=str(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [{"columns": {}}, {"separator": "\n"}, {"separator": ""}, {"newline": "|\n"}, {"newline": "x" * 17}],
    ids=["no column", "equal marks", "no separator", "one in the other", "a long mark"],
)
def test_lines_that_could_not_be_read_back_are_refused_at_once(tmp_path, arguments):
    with pytest.raises(ValueError, match=r"cannot write such lines|the name contains"):
        XSVWriter(**{"columns": ID, "separator": "|", "out": str(tmp_path / "set"), **arguments})
    assert not (tmp_path / "set").exists()


def test_a_format_that_no_reader_knows_is_refused(tmp_path):
    class Other(Bare):
        format = "other"

    with pytest.raises(ValueError, match="expected mds or one of the text formats"):
        Other(out=str(tmp_path))


def test_a_writer_without_columns_writes_a_set_without_samples_alone(tmp_path):
    with MDSWriter(columns={}, out=str(tmp_path)) as writer, pytest.raises(ValueError, match="at least one column"):
        writer.write({})
    assert load_manifest(tmp_path).rows == 0


def test_a_name_or_value_with_the_separator_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="the name contains"):
        CSVWriter(columns={"a,b": "str"}, out=str(tmp_path))
    with XSVWriter(columns={"a": "str"}, separator="|", out=str(tmp_path)) as writer:
        for value in ("a|b", "a\nb"):
            with pytest.raises(AssertionError, match="contains"):
                writer.write({"a": value})
        writer.write({"a": "a,b"})
    assert load_manifest(tmp_path).rows == 1


BAD_SAMPLES = [
    ({"id": "text"}, AttributeError),
    ({"id": 1.5}, AttributeError),
    ({"id": 1 << 63}, OverflowError),
    ({"id": b"123"}, KeyError),
    ({"other": 1}, KeyError),
]


@pytest.mark.parametrize(("sample", "error"), BAD_SAMPLES)
def test_a_sample_that_does_not_fit_is_refused_and_the_writer_goes_on(tmp_path, sample, error):
    with MDSWriter(columns=ID, out=str(tmp_path)) as writer:
        with pytest.raises(error):
            writer.write(sample)
        writer.write({"id": 1})
    assert load_manifest(tmp_path).rows == 1


@pytest.mark.parametrize("keep_local", [False, True])
def test_a_pair_writes_to_the_remote_place_and_on_demand_to_the_local_one(tmp_path, keep_local):
    local, remote = tmp_path / "local", tmp_path / "remote"
    writer = write(MDSWriter(columns=ID, out=(str(local), str(remote)), keep_local=keep_local))
    assert (writer.local, writer.remote, writer.keep_local) == (str(local), str(remote), keep_local)
    assert load_manifest(remote).rows == 20
    assert local.exists() == keep_local
    if keep_local:
        assert load_manifest(local).shards == load_manifest(remote).shards


def test_a_pair_without_a_remote_part_writes_to_the_local_folder(tmp_path):
    writer = write(MDSWriter(columns=ID, out=(str(tmp_path / "local"), "")))
    assert writer.remote == ""  # MosaicML's `dataframe_to_mds` returns such pairs
    assert load_manifest(tmp_path / "local").rows == 20


@pytest.mark.parametrize("out", ["", ("", "")])
def test_an_empty_folder_name_is_refused(out):
    with pytest.raises(FileNotFoundError, match="empty"):
        MDSWriter(columns=ID, out=out)


def test_a_remote_set_of_another_program_is_not_replaced(tmp_path):
    remote = tmp_path / "remote"
    remote.mkdir()
    (remote / "index.json").write_text('{"version": 2, "shards": []}')
    with pytest.raises(FileExistsError, match="Smalti did not write"):
        MDSWriter(columns=ID, out=(str(tmp_path / "local"), str(remote)))
    assert not (tmp_path / "local").exists()


def test_a_folder_with_contents_is_refused_and_emptied_with_exist_ok(tmp_path):
    (tmp_path / "notes.txt").write_text("old")
    with pytest.raises(FileExistsError, match="Directory is not empty"):
        MDSWriter(columns=ID, out=str(tmp_path))
    writer = write(MDSWriter(columns=ID, out=str(tmp_path), exist_ok=True))
    assert load_manifest(tmp_path).rows == 20
    assert not (tmp_path / "notes.txt").exists()
    assert writer.shards[0]["samples"] == 20


def test_a_block_that_raises_publishes_nothing(tmp_path):
    def interrupted():
        with MDSWriter(columns=ID, out=str(tmp_path), size_limit=200) as writer:
            for i in range(100):
                writer.write({"id": i})
            raise LookupError

    for _ in range(2):  # the folder can be written to again
        with pytest.raises(LookupError):
            interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_failed_upload_ends_the_writer(tmp_path):
    remote = tmp_path / "remote"
    writer = MDSWriter(columns=ID, out=(str(tmp_path / "local"), str(remote)), size_limit=200, retry=1)
    (remote / "shard.00001.mds").mkdir()  # where a file should be
    with pytest.raises(StoreError, match="One of the threads failed"):
        write(writer, 10_000)
    assert writer.event.is_set()
    assert not (remote / "index.json").exists()
    with pytest.raises(StoreError, match="One of the threads failed"):
        writer.write({"id": 0})
    assert not (tmp_path / "local").exists()


def test_attributes_follow_the_write(tmp_path):
    writer = MDSWriter(columns=ID, out=str(tmp_path), compression="snappy")
    head = writer.new_shard_size
    assert (head, writer.extra_bytes_per_shard, writer.extra_bytes_per_sample) == (8 + len(writer.config_data), head, 4)
    assert (writer.column_names, writer.column_encodings, writer.column_sizes) == (["id"], ["int"], [8])
    writer.write({"id": 1})
    assert (writer.new_samples, writer.new_shard_size) == ([bytes([1, 0, 0, 0, 0, 0, 0, 0])], head + 12)
    writer.flush_shard()
    writer._reset_cache()
    assert writer.shards[0]["raw_data"]["basename"] == "shard.00000.mds"
    assert writer.shards[0]["zip_data"]["basename"] == "shard.00000.mds.snappy"
    writer.finish()
    (shard,) = writer.shards
    assert (tmp_path / shard["zip_data"]["basename"]).stat().st_size == shard["zip_data"]["bytes"]
    with pytest.raises(ValueError, match="finished"):
        writer.finish()


class Described(MDSWriter):
    """Adds a key to the description of each shard."""

    def get_config(self):
        return {**super().get_config(), "licence": "CC0"}


def test_a_writer_with_a_description_of_its_own_stores_it_in_the_shards(tmp_path):
    writer = write(Described(columns=ID, out=str(tmp_path)))
    data = (tmp_path / writer.shards[0]["raw_data"]["basename"]).read_bytes()
    assert b'"licence": "CC0"' in data
    assert writer.shards[0]["licence"] == "CC0"
    assert load_manifest(tmp_path).rows == 20


class Bare(JointWriter):
    """MDS from the base class: one column of fixed size."""

    format = "mds"

    def get_config(self):
        return {**super().get_config(), "column_names": ["id"], "column_encodings": ["uint8"], "column_sizes": [1]}

    def encode_sample(self, sample):
        return bytes([sample["id"]])

    def encode_joint_shard(self):
        count, begin = len(self.new_samples), 8 + 4 * len(self.new_samples)
        offsets = b"".join((begin + i).to_bytes(4, "little") for i in range(count + 1))
        return count.to_bytes(4, "little") + offsets + b"".join(self.new_samples)


def test_a_writer_from_the_base_class_writes_shards_of_its_own(tmp_path):
    write(Bare(out=str(tmp_path), size_limit=9))
    manifest = load_manifest(tmp_path)
    assert [shard.samples for shard in manifest.shards] == [9, 9, 2]
    assert manifest.schema.columns() == {"id": "uint8"}


def test_the_bases_cannot_be_made(tmp_path):
    for base in (Writer, JointWriter, SplitWriter):
        with pytest.raises(TypeError, match="abstract"):
            base(out=str(tmp_path))


def test_a_cancelled_writer_leaves_nothing(tmp_path):
    writer = MDSWriter(columns=ID, out=(str(tmp_path / "local"), str(tmp_path / "remote")), size_limit=165)
    for i in range(50):
        writer.write({"id": i})
    writer.cancel_future_jobs()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "local").exists()


def test_a_shard_beyond_uint32_is_refused():
    writer = object.__new__(MDSWriter)
    writer.new_samples = [b"1", b"22"]
    assert writer._encode_table(18, b"{}") == b"\x02\0\0\0" + bytes([18, 0, 0, 0, 19, 0, 0, 0, 21, 0, 0, 0]) + b"{}"
    writer.new_samples = [range(1 << 31), range(1 << 31)]
    with pytest.raises(ValueError, match="size_limit"):
        writer._encode_table(18, b"{}")


@pytest.fixture
def s3(s3_server, s3_bucket, monkeypatch):  # noqa: F811
    """Return a bucket that the environment leads to."""
    monkeypatch.setenv("S3_ENDPOINT_URL", s3_server)
    return f"s3://{s3_bucket}"


@pytest.mark.parametrize("keep_local", [False, True])
def test_a_url_gets_the_set_and_the_temporary_folder_a_copy_on_demand(s3, keep_local):
    writer = MDSWriter(columns=ID, out=f"{s3}/set{keep_local}", size_limit=200, keep_local=keep_local)
    assert (writer.remote, Path(writer.local).exists()) == (f"{s3}/set{keep_local}", True)
    write(writer)
    assert load_manifest(writer.remote).rows == 20
    assert Path(writer.local).exists() == keep_local
    if keep_local:
        assert load_manifest(writer.local).rows == 20
        shutil.rmtree(writer.local)


class NoLineEnds(JSONWriter):
    """A writer whose lines do not end as its description says."""

    def encode_sample(self, sample):
        return super().encode_sample(sample).rstrip(b"\n")


class NoText(CSVWriter):
    """A writer of lines that are not UTF-8."""

    def encode_sample(self, sample):
        return super().encode_sample(sample)[:-1] + b"\xff\n"


class Cut(MDSWriter):
    """A writer of samples that lack the end of their last column."""

    def encode_sample(self, sample):
        return super().encode_sample(sample)[:-3]


@pytest.mark.parametrize("writer", [NoLineEnds, NoText, Cut])
@pytest.mark.parametrize("is_new", [True, False], ids=["a new set", "a further version"])
def test_a_set_that_no_reader_could_read_does_not_appear(tmp_path, writer, is_new):
    remote, local = tmp_path / "remote", tmp_path / "local"
    if not is_new:
        with NativeWriter(out=remote, columns=ID) as first:
            first.write({"id": 7})
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(SmaltiError, match="damaged"):
        write(writer(columns=ID, out=(str(local), str(remote))))
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
