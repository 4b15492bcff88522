"""make_spark_converter on a classic session: what is written, what is found again, what is removed."""

import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.mllib.linalg import Vectors as OldVectors

from smalti.compat.petastorm import (
    FilesNotAvailable,
    NoDataAvailableError,
    SparkDatasetConverter,
    TransformSpec,
    converted_folders,
    make_spark_converter,
    register_delete_dir_handler,
)
from smalti.compat.petastorm.spark import TFDatasetContextManager, TorchDatasetContextManager
from smalti.errors import ChecksumMismatch
from tests.compat.parquet_files import flat, ids_of, write_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.torch, pytest.mark.filterwarnings("error")]
THEIRS, OURS = "petastorm.spark.converter.parentCacheDirUrl", "smalti.converter.cacheDir"


@pytest.fixture
def parent(spark, tmp_path):
    """The folder for converted DataFrames, set as Petastorm's users set it."""
    spark.conf.set(THEIRS, f"file://{tmp_path}/parent dir")
    yield tmp_path / "parent dir"
    for name in (THEIRS, OURS):
        spark.conf.unset(name)


def folders(parent):
    return sorted(path.name for path in parent.iterdir())


def test_a_dataframe_becomes_batches_of_tensors(spark, parent):
    converter = make_spark_converter(spark.range(100).coalesce(2))
    assert len(converter) == converter.dataset_size == 100
    assert all(re.fullmatch(r"file:///.*/parent dir/.*\.parquet", each) for each in converter.file_urls)
    with converter.make_torch_dataloader(batch_size=30, num_epochs=1) as loader:
        batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [30, 30, 30, 10]
    assert sorted(flat(ids_of(batches))) == list(range(100))
    with pytest.raises(RuntimeError, match="stopped"):
        next(loader.reader)
    converter.delete()


def test_the_folder_is_named_by_time_application_and_a_number_of_its_own(spark, parent):
    converter = make_spark_converter(spark.range(3))
    (name,) = folders(parent)
    application = re.escape(spark.sparkContext.applicationId)
    assert re.fullmatch(rf"\d{{14}}-appid-{application}-[0-9a-f]{{8}}-[0-9a-f-]{{27}}", name)
    converter.delete()


def test_without_the_setting_nothing_is_written(spark):
    with pytest.raises(ValueError, match=THEIRS):
        make_spark_converter(spark.range(3))


def test_the_setting_is_read_at_each_call_and_ours_goes_first(spark, parent, tmp_path):
    converters = [make_spark_converter(spark.range(3))]
    spark.conf.set(THEIRS, f"file://{tmp_path}/second")
    converters.append(make_spark_converter(spark.range(3)))
    spark.conf.set(OURS, f"file://{tmp_path}/third")
    converters.append(make_spark_converter(spark.range(3)))
    assert [len(folders(tmp_path / name)) for name in ("parent dir", "second", "third")] == [1, 1, 1]
    for each in converters:
        each.delete()


def test_a_folder_without_a_scheme_is_refused(spark, parent, tmp_path):
    spark.conf.set(THEIRS, str(tmp_path))
    with pytest.raises(ValueError, match="prepend file://"):
        make_spark_converter(spark.range(3))


def test_a_folder_of_one_machine_is_told_on_a_databricks_cluster(spark, parent, monkeypatch, caplog):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    make_spark_converter(spark.range(3)).delete()
    assert "folder of one machine" not in caplog.text  # local mode
    spark.conf.set("spark.master", "spark://host:7077")
    try:
        make_spark_converter(spark.range(3)).delete()
    finally:
        spark.conf.unset("spark.master")
    assert "folder of one machine" in caplog.text


def test_the_master_of_a_session_is_read_only_for_a_folder_of_one_machine(monkeypatch):
    class Conf:
        def get(self, name, default):
            if name == "spark.master":
                raise RuntimeError("the session has no such setting")
            return "file:/dbfs/converted" if name == THEIRS else default

    session = SimpleNamespace(conf=Conf())
    assert converted_folders.parent_folder(session) == "file:/dbfs/converted"
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    assert converted_folders.parent_folder(session) == "file:/dbfs/converted"


def test_an_equal_plan_is_written_once_and_after_delete_again(spark, parent):
    first = make_spark_converter(spark.range(10).filter("id > 3"))
    again = make_spark_converter(spark.range(10).where("id > 3"))
    assert again.cache_dir_url == first.cache_dir_url
    assert len(again) == 6
    assert len(folders(parent)) == 1
    first.delete()
    assert folders(parent) == []
    third = make_spark_converter(spark.range(10).filter("id > 3"))
    assert third.cache_dir_url != first.cache_dir_url
    third.delete()


def test_other_options_are_written_anew(spark, parent):
    df = spark.range(10)
    others = ({}, {"dtype": "float64"}, {"compression_codec": "gzip"}, {"parquet_row_group_size_bytes": 1 << 20})
    made = [make_spark_converter(df, **options) for options in others]
    assert len(folders(parent)) == 4
    for each in made:
        each.delete()


def test_what_somebody_removed_is_written_again(spark, parent):
    first = make_spark_converter(spark.range(5))
    next(Path(first.cache_dir_url.removeprefix("file://")).glob("*.parquet")).unlink()
    second = make_spark_converter(spark.range(5))
    assert second.cache_dir_url != first.cache_dir_url
    assert len(second) == 5
    for each in (first, second):
        each.delete()


def test_an_equal_plan_over_files_that_changed_is_written_again(spark, parent, tmp_path):
    """Spark calls the plans equal; Petastorm would hand out the old rows."""
    source = str(write_rows(tmp_path / "source", files=1, rows=4, group=4))
    first = make_spark_converter(spark.read.parquet(source))
    write_rows(tmp_path / "source", files=1, rows=6, group=6)
    spark.catalog.refreshByPath(source)
    second = make_spark_converter(spark.read.parquet(source))
    assert (len(first), len(second)) == (4, 6)
    for each in (first, second):
        each.delete()


def test_what_is_kept_is_found_by_a_later_program_if_it_is_whole(spark, parent, tmp_path):
    """Forgetting what this process wrote stands for another program; the folder is not to be removed at the end."""
    source = str(write_rows(tmp_path / "source", files=1))
    first = make_spark_converter(spark.read.parquet(source), keep=True)
    converted_folders._written_folders.clear()
    again = make_spark_converter(spark.read.parquet(source), keep=True)
    assert again.cache_dir_url == first.cache_dir_url
    assert first.cache_dir_url not in converted_folders._at_exit
    other = make_spark_converter(spark.read.parquet(source), keep=True, dtype=None)
    assert other.cache_dir_url != first.cache_dir_url
    first.delete()
    second = make_spark_converter(spark.read.parquet(source), keep=True)
    assert second.cache_dir_url != first.cache_dir_url
    assert len(second) == 40


def test_a_note_that_leads_elsewhere_is_not_followed(tmp_path, caplog):
    (tmp_path / "_kept").mkdir()
    for note in ('{"folder": "../x", "files": []}', "[]", "{", '{"folder": "x", "files": [1]}'):
        (tmp_path / "_kept" / "k.json").write_text(note)
        assert converted_folders.find_kept_folder(f"file://{tmp_path}", "k", None) is None
    assert caplog.text.count("is damaged and not used") == 4
    assert converted_folders.find_kept_folder(f"file://{tmp_path}", "none", None) is None


def test_floats_get_the_precision_that_was_asked_for_and_integers_stay(spark, parent, caplog):
    df = spark.sql("select cast(1.1 as double) d, cast(1.5 as float) f, array(1.1D) ad, array(1.5F) af, 7 i, 'x' s")

    def types(**options):
        converter = make_spark_converter(df, **options)
        schema = pq.read_schema(converter.file_urls[0].removeprefix("file://"))
        converter.delete()
        return [
            str(schema.field(name).type).replace("element: ", "").replace(" not null", "")
            for name in ("d", "f", "ad", "af", "i", "s")
        ]

    assert types() == ["float", "float", "list<float>", "list<float>", "int32", "string"]
    assert "floating-point columns become float32: d, ad" in caplog.text
    assert types(dtype="float64") == ["double", "double", "list<double>", "list<double>", "int32", "string"]
    assert types(dtype=None) == ["double", "float", "list<double>", "list<float>", "int32", "string"]


@pytest.mark.parametrize(("dtype", "numpy"), [("float32", np.float32), ("float64", np.float64), (None, np.float64)])
def test_vectors_become_arrays(spark, parent, dtype, numpy):
    rows = [
        (0, Vectors.dense(1.0, 2.0), OldVectors.sparse(2, {1: 3.0})),
        (1, Vectors.sparse(2, {0: 5.0}), OldVectors.dense(4.0, 5.0)),
    ]
    converter = make_spark_converter(spark.createDataFrame(rows, ["id", "new", "old"]).coalesce(1), dtype=dtype)
    with converter.make_torch_dataloader(num_epochs=1, shuffle_row_groups=False) as loader:
        (batch,) = loader
    assert batch["new"].numpy().dtype == numpy
    assert batch["new"].tolist() == [[1.0, 2.0], [5.0, 0.0]]
    assert batch["old"].tolist() == [[0.0, 3.0], [4.0, 5.0]]
    converter.delete()


def test_arguments_out_of_range_are_refused_before_anything_is_written(spark, parent):
    df = spark.range(1)
    with pytest.raises(ValueError, match="float16"):
        make_spark_converter(df, dtype="float16")
    for codec in ("zip", "bzip2"):
        with pytest.raises(RuntimeError, match=codec):
            make_spark_converter(df, compression_codec=codec)
    with pytest.raises(TypeError, match=r"`df` must be a Spark DataFrame, found .*: give spark.createDataFrame"):
        make_spark_converter(pd.DataFrame({"x": [1]}))
    with pytest.raises(ValueError, match="row_group"):
        make_spark_converter(df, 0)
    assert not parent.exists()


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_every_codec_is_read_back(spark, parent, codec):
    converter = make_spark_converter(spark.range(50).coalesce(1), compression_codec=codec)
    with converter.make_torch_dataloader(num_epochs=1) as loader:
        assert sorted(flat(ids_of(loader))) == list(range(50))
    converter.delete()


def test_spark_writes_checksums_of_pages_and_damage_is_told(spark, parent):
    from smalti.errors import FormatError

    converter = make_spark_converter(spark.range(1000).coalesce(1))
    (path,) = Path(converter.cache_dir_url.removeprefix("file://")).glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with converter.make_torch_dataloader(num_epochs=1) as loader, pytest.raises(FormatError, match="CRC"):
        list(loader)
    converter.delete()


def test_small_files_are_a_warning(spark, parent, caplog):
    make_spark_converter(spark.range(10).repartition(3)).delete()
    assert "the median size of the 3 Parquet files" in caplog.text


def test_a_converter_pickles_and_reads_in_another_process(spark, parent, tmp_path):
    converter = make_spark_converter(spark.range(20))
    (tmp_path / "converter.pickle").write_bytes(pickle.dumps(converter))
    code = (
        "import pickle, sys; converter = pickle.load(open(sys.argv[1], 'rb'))\n"
        "with converter.make_torch_dataloader(num_epochs=1, cur_shard=1, shard_count=2) as loader:\n"
        "    print(len(converter), sum(len(batch['id']) for batch in loader), 'pyspark' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "converter.pickle"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout.split() == ["20", "10", "False"], done.stderr
    converter.delete()


def test_in_a_spark_task_the_converter_reads_and_making_one_is_refused(spark, parent):
    converter = make_spark_converter(spark.range(20))

    def task(part):
        with converter.make_torch_dataloader(num_epochs=1, cur_shard=part, shard_count=2) as loader:
            rows = flat(ids_of(loader))
        try:
            make_spark_converter(None)
        except RuntimeError as error:
            return rows, str(error)
        return rows, ""

    told = spark.sparkContext.parallelize([0, 1], 2).map(task).collect()
    assert sorted(flat(rows for rows, _ in told)) == list(range(20))
    assert all("on the driver" in text for _, text in told)
    converter.delete()


def test_files_of_a_path_are_read_where_they_are_and_never_deleted(tmp_path, caplog):
    source = write_rows(tmp_path / "source")
    converter = make_spark_converter(f"file://{source}")
    assert len(converter) == 120
    converter.delete()
    assert "is not deleted" in caplog.text
    with converter.make_torch_dataloader(num_epochs=1) as loader:
        assert len(flat(ids_of(loader))) == 120


def test_paths_on_databricks_are_those_that_all_machines_see(monkeypatch):
    from smalti.compat.petastorm.converted_folders import databricks_path

    assert databricks_path("/anything") == "/anything"
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    assert databricks_path("dbfs:/x/y") == databricks_path("dbfs:///x/y") == "file:/dbfs/x/y"
    assert databricks_path("file:/dbfs/x") == "file:/dbfs/x"
    assert databricks_path("dbfs:/Volumes/c/s/v/x") == databricks_path("/Volumes/c/s/v/x") == "file:/Volumes/c/s/v/x"
    for url in ("/local", "file:///tmp/x", "s3://b/x", "dbfs://x"):
        with pytest.raises(ValueError, match="readable on all machines"):
            databricks_path(url)


def test_files_that_never_appear_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("smalti.compat.petastorm.spark.spark_dataset_converter._FILE_WAIT_SECONDS", 0.2)
    converter = SparkDatasetConverter("file:///x", [f"file://{tmp_path}/gone.parquet"], 3)
    with pytest.raises(FilesNotAvailable, match=r"gone\.parquet") as told, converter.make_torch_dataloader():
        pass
    assert isinstance(told.value, RuntimeError)


def test_a_context_of_a_loader_does_not_see_later_changes_of_its_arguments(tmp_path):
    urls, options = [f"file://{write_rows(tmp_path, files=1)}/part-00000.parquet"], {"num_epochs": 1}
    context = TorchDatasetContextManager(urls, 40, options, 0, None)
    for_tensorflow = TFDatasetContextManager(urls, 40, None, options, None)
    options["num_epochs"] = 2
    urls.clear()
    with context as loader:
        assert len(flat(ids_of(loader))) == 40
    assert len(for_tensorflow.parquet_file_url_list) == for_tensorflow.petastorm_reader_kwargs["num_epochs"] == 1


def test_files_with_other_rows_than_were_converted_are_refused(tmp_path):
    where = write_rows(tmp_path / "set", files=1)
    converter = SparkDatasetConverter(f"file://{where}", [f"file://{where}/part-00000.parquet"], 39)
    with pytest.raises(ChecksumMismatch, match="expected 39 rows"), converter.make_torch_dataloader():
        pass


def test_a_deleted_converter_says_so_at_once(spark, parent):
    converter = make_spark_converter(spark.range(3))
    converter.delete()
    with pytest.raises(ValueError, match="was deleted"), converter.make_torch_dataloader():
        pass


def test_an_empty_dataframe_has_no_loader(spark, parent):
    converter = make_spark_converter(spark.range(0))
    assert len(converter) == 0
    with pytest.raises(NoDataAvailableError), converter.make_torch_dataloader():
        pass
    converter.delete()


def test_a_loader_function_is_given_reader_size_and_capacity(spark, parent):
    converter = make_spark_converter(spark.range(3))
    given = {}
    with converter.make_torch_dataloader(
        batch_size=2, shuffling_queue_capacity=5, data_loader_fn=lambda **named: given.update(named), num_epochs=1
    ):
        pass
    assert (given["batch_size"], given["shuffling_queue_capacity"]) == (2, 5)
    assert given["reader"].batched_output
    converter.delete()


def test_a_handler_removes_instead_of_us(spark, parent):
    seen = []
    converter = make_spark_converter(spark.range(3))
    register_delete_dir_handler(seen.append)
    try:
        converter.delete()
    finally:
        register_delete_dir_handler(None)
    assert seen == [converter.cache_dir_url]
    assert len(folders(parent)) == 1


def test_a_write_that_fails_leaves_no_folder(spark, parent):
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException):
        make_spark_converter(spark.sql("select raise_error('on purpose') as x"))
    assert not parent.exists() or folders(parent) == []


END = """
import logging, os, sys
from smalti.compat.petastorm import register_delete_dir_handler
from smalti.compat.petastorm.converted_folders import delete_at_exit
logging.basicConfig()
delete_at_exit("file://" + sys.argv[1])
if len(sys.argv) > 2:
    def refuse(url): raise OSError("on purpose")
    register_delete_dir_handler(refuse)
if os.fork() == 0:
    sys.exit(0)  # a child's copy of what is to be removed
os.wait()
print(os.path.exists(sys.argv[1]))
"""


@pytest.mark.parametrize("fails", [False, True])
def test_at_the_programs_end_folders_are_removed_and_a_failure_is_only_a_warning(tmp_path, fails):
    folder = write_rows(tmp_path / "written", files=1)
    command = [sys.executable, "-c", END, str(folder), *(["fails"] if fails else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert folder.exists() is fails
    assert ("could not remove" in done.stderr) is fails


def test_what_is_written_is_to_be_removed_at_the_programs_end_unless_it_was_before(spark, parent):
    converter = make_spark_converter(spark.range(3))
    assert converter.cache_dir_url in converted_folders._at_exit
    converter.delete()
    assert converter.cache_dir_url not in converted_folders._at_exit


def test_images_are_decoded_in_a_transform_as_on_databricks(spark, parent):
    """Binary column, TransformSpec, `cur_shard`, `steps_per_epoch`: the notebook that people bring."""
    import io

    from PIL import Image

    def jpeg(row):
        out = io.BytesIO()
        Image.new("RGB", (8, 6), (row * 20, 0, 0)).save(out, "JPEG", quality=95)
        return out.getvalue()

    df = spark.createDataFrame([(jpeg(row), row) for row in range(12)], ["content", "label"]).coalesce(1)
    converter = make_spark_converter(df)

    def decode(frame):
        frame["features"] = [
            np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1).astype(np.float32) for data in frame["content"]
        ]
        return frame.drop(columns=["content"])

    spec = TransformSpec(
        decode, edit_fields=[("features", np.float32, (3, 6, 8), False)], selected_fields=["features", "label"]
    )
    labels = []
    for rank in range(2):
        options = {"transform_spec": spec, "cur_shard": rank, "shard_count": 2}
        with converter.make_torch_dataloader(batch_size=3, **options) as loader:
            batches = iter(loader)
            for _ in range(len(converter) // (3 * 2)):
                batch = next(batches)
                assert list(batch) == ["features", "label"]
                assert tuple(batch["features"].shape) == (3, 3, 6, 8)
                assert (batch["features"][:, 0].mean((1, 2)) / 20).round().tolist() == batch["label"].tolist()
                labels += batch["label"].tolist()
    assert sorted(labels) == list(range(12))
    converter.delete()


# ---------------------------------------------------------------- the page


PAGE = Path(__file__).resolve().parents[2] / "docs" / "petastorm.md"


@pytest.mark.usefixtures("spark", "parent")
def test_the_page_runs_as_it_is_printed(tmp_path):
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(code.replace("/tmp/", f"{tmp_path}/"), PAGE.name, "exec"), names)
    assert len(names["converter"]) == 100
    assert names["rows"] == 90
    assert names["state"]["sample_in_epoch"] == 96
    values = {each.name: np.ones(each.shape, each.numpy_dtype) for each in names["schema"].fields.values()}
    encoded = {
        each.name: [bytes(each.codec.encode(each, values[each.name]))] for each in names["schema"].fields.values()
    }
    pq.write_table(pa.table(encoded), tmp_path / "scenes.parquet")
    with names["make_batch_reader"]([f"file://{tmp_path}/scenes.parquet"], transform_spec=names["spec"]) as reader:
        (batch,) = list(reader)
    assert all(np.array_equal(getattr(batch, name)[0], value) for name, value in values.items())
    names["converter"].delete()
