"""A pickle in the data never runs, whichever reader opens it, unless the user allowed unsafe types (fault S1)."""

import pickle
from pathlib import Path

import pytest

from smalti.cache import CacheOptions
from smalti.catalog import history, load_manifest, verify
from smalti.cli import main
from smalti.dataset import StreamingDataset, open_dataset
from smalti.dataset.local import LocalDataset
from smalti.errors import FormatError, IndexFileError, SchemaError, SmaltiError
from smalti.writer import MDSWriter
from tests.golden.malformed.make import file, index, lines, mds, one_value, sample, shard


class Payload:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "the payload ran"


@pytest.fixture(params=range(pickle.HIGHEST_PROTOCOL + 1))
def attack(request, marker):
    """Return a pickle that leaves a mark when it is loaded, in each protocol."""
    return pickle.dumps(Payload(marker), protocol=request.param)


def write(folder, files):
    folder.mkdir(parents=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return folder


def stream(folder):
    return list(StreamingDataset(remote=str(folder), cache=CacheOptions(local=f"{folder}-cache"), batch_size=1))


def stream_batches(folder):
    return list(
        StreamingDataset(remote=str(folder), cache=CacheOptions(local=f"{folder}-cache"), batch_size=1).batches()
    )


def stream_one(folder):
    return StreamingDataset(remote=str(folder), cache=CacheOptions(local=f"{folder}-cache"))[0]


def opened(folder):
    return open_dataset(str(folder))[0]


def local(folder):
    return LocalDataset(str(folder))[0]


READERS = [stream, stream_batches, stream_one, opened, local]


def test_the_payload_runs_when_it_is_unpickled(attack, marker):
    pickle.loads(attack)
    assert marker.exists()


@pytest.mark.parametrize("reader", READERS)
def test_a_pickled_column_is_refused_by_every_reader(reader, attack, marker, tmp_path):
    folder = write(tmp_path / "set", one_value("pkl", attack))
    with pytest.raises(SchemaError, match="pkl"):
        reader(folder)
    assert not marker.exists()


def test_a_pickled_column_is_refused_when_the_set_is_opened(attack, marker, tmp_path):
    folder = write(tmp_path / "set", one_value("pkl", attack))
    for open_set in (open_dataset, LocalDataset):
        with pytest.raises(SchemaError, match="allow_unsafe_types"):
            open_set(str(folder))
    assert not marker.exists()


def test_a_pickled_column_runs_only_with_allow_unsafe_types(attack, marker, tmp_path):
    folder = write(tmp_path / "set", one_value("pkl", attack))
    StreamingDataset(remote=str(folder), allow_unsafe_types=True)[0]
    assert marker.exists()
    marker.unlink()
    LocalDataset(str(folder), allow_unsafe_types=True)[0]
    assert marker.exists()


def test_inspecting_a_set_unpickles_nothing(attack, marker, tmp_path, capsys):
    folder = write(tmp_path / "set", one_value("pkl", attack))
    assert load_manifest(str(folder)).schema.encodings == ("pkl",)
    assert history(str(folder)) == []
    assert verify(str(folder)).problems == ()
    for command in ("show", "history", "verify"):
        assert main([command, str(folder)]) == 0
    assert "pkl" in capsys.readouterr().out
    assert not marker.exists()


def test_merging_indexes_unpickles_nothing(attack, marker, tmp_path):
    from smalti.catalog import merge_index

    for name in ("a", "b"):
        write(tmp_path / "set" / name, one_value("pkl", attack))
    merge_index(str(tmp_path / "set"))
    assert not marker.exists()
    with pytest.raises(SchemaError, match="pkl"):
        stream(tmp_path / "set")
    assert not marker.exists()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "encoding",
    ["str", "json", "str_int", "str_float", "str_decimal", "ndarray", "ndarray:uint8", "pil", "jpeg", "png",
     "list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "bytes"],
)  # fmt: skip
def test_a_pickle_under_another_name_is_bytes_or_an_error(reader, encoding, marker, tmp_path):
    attack = pickle.dumps(Payload(marker))
    folder = write(tmp_path / "set", one_value(encoding, attack))
    try:
        reader(folder)
    except FormatError:
        assert encoding != "bytes"
    else:
        assert encoding == "bytes" or (reader is stream_batches and encoding in {"jpeg", "png"}), "a value of a pickle"
    assert not marker.exists()


@pytest.mark.parametrize("reader", READERS)
def test_a_pickle_in_place_of_any_file_is_an_error(reader, attack, marker, tmp_path):
    places = {
        "index": {"index.json": attack},
        "shard": {"index.json": one_value("bytes", b"x")["index.json"], "shard.00000.mds": attack},
        "honest size": {
            "index.json": index(mds(raw_data=file("shard.00000.mds", attack), hashes=["xxh3_64"], samples=1)),
            "shard.00000.mds": attack,
        },
        "lines": lines("json", attack, [0, len(attack)]),
        "meta": {**lines("json", b"{}\n", [0, 3]), "shard.00000.json.meta": attack},
        "header": {"index.json": index(smalti={"version": 1}), "_versions/00000001.json": attack},
        "state": {"index.json": attack, ".metadata": attack, "_versions/00000001.json": attack},
    }
    for name, files in places.items():
        with pytest.raises((SmaltiError, IndexError)):
            reader(write(tmp_path / name, files))
    assert not marker.exists()


def test_a_pickle_as_the_config_of_a_shard_is_skipped(attack, marker, tmp_path):
    data = shard([sample(b"abc")], config=attack)
    files = one_value("bytes", b"")
    entry = mds(
        column_names=["x"], column_encodings=["bytes"], column_sizes=[None], hashes=["xxh3_64"], samples=1,
        raw_data=file("shard.00000.mds", data),
    )  # fmt: skip
    folder = write(tmp_path / "set", {**files, "index.json": index(entry), "shard.00000.mds": data})
    for reader in (stream_one, opened, local):
        assert reader(folder) == {"x": b"abc"}
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["pkl", "pickle", "list[pkl]", "pkl:4", "dill", "PKL", " pkl", "joblib", "torch", "npy"]
)
def test_no_other_encoding_name_means_pickle(name, marker, tmp_path):
    folder = write(tmp_path / "set", one_value(name, pickle.dumps(Payload(marker))))
    with pytest.raises((IndexFileError, SchemaError)):
        opened(folder)
    assert not marker.exists()


def test_pickled_columns_are_written_only_with_allow_unsafe_types(tmp_path):
    with pytest.raises(SchemaError, match="pkl"):
        MDSWriter(out=str(tmp_path / "set"), columns={"x": "pkl"})
    assert not (tmp_path / "set").exists()


def test_an_array_of_objects_is_refused_by_the_writer(marker, tmp_path):
    import numpy as np

    with MDSWriter(out=str(tmp_path / "set"), columns={"x": "ndarray"}) as writer:
        with pytest.raises(SchemaError):
            writer.write({"x": np.array([Payload(marker)], dtype=object)})
        with pytest.raises(SchemaError):
            writer.write({"x": pickle.dumps(Payload(marker))})
    assert not marker.exists()


@pytest.mark.spark
def test_a_data_frame_is_not_pickled(tmp_path):
    from smalti.spark import dataframe_to_mds

    class Frame:
        """A data frame on which every computation fails."""

        columns = ("x",)
        mapInArrow = sparkSession = None  # noqa: N815  Spark's names

        @property
        def schema(self):
            from pyspark.sql.types import BinaryType, StructType

            return StructType().add("x", BinaryType())

    with pytest.raises(SchemaError, match="pkl"):
        dataframe_to_mds(Frame(), out=str(tmp_path / "set"), columns={"x": "pkl"})
    assert not (tmp_path / "set").exists()
