"""Petastorm 0.13.1's public names at their paths, with their parameters, beside a table written from its source."""

import importlib
import inspect
import io
import pickle
import re
import struct
import subprocess
import zlib
from decimal import Decimal
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.compat.petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from smalti.compat.petastorm.unischema import Unischema, UnischemaField, match_unischema_fields
from tests.compat.parquet_files import url, write_rows

pytestmark = pytest.mark.torch

OURS = "smalti.compat.petastorm"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "petastorm.md"
READER = (
    "dataset_url_or_urls, schema_fields=None, reader_pool_type='thread', workers_count=10, results_queue_size=50, "
    "seed=None, shuffle_rows=False, shuffle_row_groups=True, shuffle_row_drop_partitions=1, predicate=None, "
    "rowgroup_selector=None, num_epochs=1, cur_shard=None, shard_count=None, shard_seed=None, cache_type='null', "
    "cache_location=None, cache_size_limit=None, cache_row_size_estimate=None, cache_extra_settings=None, "
    "hdfs_driver='libhdfs3', transform_spec=None, filters=None, storage_options=None, zmq_copy_buffers=True, "
    "filesystem=None, convert_early_to_numpy=False"
)
CONVERT = "df, parquet_row_group_size_bytes=33554432, compression_codec=None, dtype='float32'"
CONVERTER = "cache_dir_url, file_urls, dataset_size"
TORCH = (
    "parquet_file_url_list, batch_size, petastorm_reader_kwargs, shuffling_queue_capacity, data_loader_fn",
    "parquet_file_url_list, batch_size, prefetch, petastorm_reader_kwargs, shuffling_queue_capacity",
)
SPEC = "func=None, edit_fields=None, removed_fields=None, selected_fields=None"
NAMES = {
    "": {"make_batch_reader": READER, "make_reader": None, "TransformSpec": SPEC, "NoDataAvailableError": None},
    "reader": {
        "make_batch_reader": READER,
        "make_reader": None,
        "Reader": None,
        "LOCAL_DISK_CACHE": None,
        "NULL_CACHE": None,
    },
    "spark": {"make_spark_converter": CONVERT, "SparkDatasetConverter": CONVERTER},
    "spark.spark_dataset_converter": {
        "make_spark_converter": CONVERT,
        "SparkDatasetConverter": CONVERTER,
        "TorchDatasetContextManager": TORCH[0],
        "TFDatasetContextManager": TORCH[1],
        "register_delete_dir_handler": "handler",
        "DEFAULT_ROW_GROUP_SIZE_BYTES": None,
    },
    "pytorch": {
        "DataLoader": "reader, batch_size=1, collate_fn=<decimal_friendly_collate>, shuffling_queue_capacity=0",
        "BatchedDataLoader": "reader, batch_size=1, transform_fn=None, shuffling_queue_capacity=0",
        "InMemBatchedDataLoader": (
            "reader, batch_size=1, transform_fn=None, num_epochs=1, seed=0, rows_capacity=1024, shuffle=False"
        ),
        "LoaderBase": None,
        "decimal_friendly_collate": "batch",
    },
    "tf_utils": {"make_petastorm_dataset": "reader", "tf_tensors": None},
    "transform": {
        "TransformSpec": SPEC,
        "edit_field": "name, numpy_dtype, shape, nullable=False",
        "transform_schema": "schema, transform_spec",
    },
    "unischema": {
        "UnischemaField": "name, numpy_dtype, shape, codec=None, nullable=False",
        "Unischema": "name, fields",
        "match_unischema_fields": "schema, field_regex",
        "dict_to_spark_row": None,
        "insert_explicit_nulls": None,
    },
    "codecs": {
        "DataframeColumnCodec": None,
        "CompressedImageCodec": "image_codec='png', quality=80",
        "NdarrayCodec": "",
        "CompressedNdarrayCodec": "",
        "ScalarCodec": "spark_type",
    },
    "predicates": {
        "PredicateBase": None,
        "in_set": "inclusion_values, predicate_field",
        "in_intersection": "inclusion_values, _predicate_field",
        "in_lambda": "predicate_fields, predicate_func, state_arg=None",
        "in_negate": "predicate",
        "in_reduce": "predicate_list, reduce_func",
        "in_pseudorandom_split": "fraction_list, subset_index, predicate_field",
    },
    "errors": {"NoDataAvailableError": None},
    "ngram": {"NGram": None},
    "selectors": dict.fromkeys(
        ["RowGroupSelectorBase", "SingleIndexSelector", "IntersectIndexSelector", "UnionIndexSelector"]
    ),
    "weighted_sampling_reader": {"WeightedSamplingReader": None},
    "spark_utils": {"dataset_as_rdd": None},
    "etl.dataset_metadata": {
        "materialize_dataset": None,
        "get_schema": None,
        "get_schema_from_dataset_url": None,
        "infer_or_load_unischema": None,
        "load_row_groups": None,
        "PetastormMetadataError": None,
        "PetastormMetadataGenerationError": None,
    },
}
"""Parameters by module and name; None where only the name is compared: refused functions, bases, constants."""

LEFT_OUT = {
    "cache, local_disk_cache, fs_utils, generator, utils": "parts of its reader, which is another one here",
    "workers_pool, reader_impl, pyarrow_helpers, hdfs, benchmark": "parts of its reader",
    "etl.rowgroup_indexing, etl.rowgroup_indexers, etl.metadata_util, tools": "they write and read pickles",
    "reader.normalize_dataset_url_or_urls, spark.spark_dataset_converter.CachedDataFrameMeta": "internal",
    "tf_utils.date_to_nsec_from_epoch, tf_utils.make_namedtuple_tf_ngram": "internal",
    "Unischema.from_arrow_schema, Unischema.make_namedtuple_tf": "for pyarrow's ParquetDataset and TensorFlow 1",
}
"""Names of Petastorm that are left out, with the reason."""

OTHER_DEFAULTS = {
    "workers_count": "four threads do as much as Petastorm's ten",
    "results_queue_size": "None stands for two pieces of work a thread",
    "shuffle_rows": "None: rows are shuffled where row groups are",
    "hdfs_driver": "pyarrow has no libhdfs3 any more; the argument has no effect",
}
"""Parameters of `make_batch_reader` with another default, with the reason."""


def parameters(text):
    """Parse a table's entry into (name, default as text or None)."""
    pairs = [part.partition("=") for part in text.split(", ")] if text else []
    return [(name, default if equals else None) for name, equals, default in pairs]


def found_parameters(value):
    """Return (name, default as text or None) of the parameters that can be given by position."""
    known = [each for each in inspect.signature(value).parameters.values() if each.kind == each.POSITIONAL_OR_KEYWORD]
    return [(each.name, None if each.default is each.empty else shown(each.default)) for each in known]


def shown(default):
    return f"<{default.__name__}>" if inspect.isfunction(default) else repr(default)


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_at_petastorms_path_with_its_parameters(module):
    home = importlib.import_module(f"{OURS}.{module}".rstrip("."))
    for name, expected in NAMES[module].items():
        value = getattr(home, name)
        if expected is None:
            continue
        found = dict(found_parameters(value))
        assert list(found) == [each for each, _ in parameters(expected)], name
        differing = {each for each, default in parameters(expected) if found[each] != default}
        assert differing == (set(OTHER_DEFAULTS) if name == "make_batch_reader" else set()), name


def test_modules_are_attributes_of_the_package():
    package = importlib.import_module(OURS)
    for module in NAMES:
        if module:
            assert getattr(package, module.partition(".")[0]).__name__ == f"{OURS}.{module.partition('.')[0]}"


REFUSED = {
    "materialize_dataset": ("etl.dataset_metadata", "dataframe_to_mds"),
    "infer_or_load_unischema": ("etl.dataset_metadata", "make_batch_reader"),
    "dict_to_spark_row": ("unischema", "dataframe_to_mds"),
    "NGram": ("ngram", "lead.*docs/petastorm.md"),
    "SingleIndexSelector": ("selectors", "filters"),
    "WeightedSamplingReader": ("weighted_sampling_reader", "Stream"),
    "dataset_as_rdd": ("spark_utils", "make_batch_reader"),
    "tf_tensors": ("tf_utils", "make_petastorm_dataset"),
    "make_reader": ("reader", "make_batch_reader"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_name_can_be_imported_and_says_when_called_what_to_use(name):
    module, advice = REFUSED[name]
    refused = getattr(importlib.import_module(f"{OURS}.{module}"), name)
    with pytest.raises(NotImplementedError, match=f"{name}.*not supported.*{advice}"):
        refused("file:///data", 1)


PROGRAM = """
import numpy as np
import petastorm
import petastorm.spark.spark_dataset_converter as internal
from petastorm import TransformSpec, make_batch_reader
from petastorm.predicates import in_lambda
from petastorm.pytorch import BatchedDataLoader, DataLoader, decimal_friendly_collate
from petastorm.reader import Reader
from petastorm.spark import SparkDatasetConverter, make_spark_converter
from petastorm.spark.spark_dataset_converter import TorchDatasetContextManager
from petastorm.transform import edit_field

def double(frame):
    frame["twice"] = frame["id"] * 2
    return frame

spec = TransformSpec(double, edit_fields=[edit_field("twice", np.int64, ())])
converter = make_spark_converter(url)
assert isinstance(converter, SparkDatasetConverter) and SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF
seen = {}
with converter.make_torch_dataloader(batch_size=50, num_epochs=1, transform_spec=spec, workers_count=2) as loader:
    seen["converter"] = [(batch["id"].tolist(), batch["twice"].tolist()) for batch in loader]
options = {"num_epochs": 1, "workers_count": 2, "results_queue_size": 5, "reader_pool_type": "thread"}
with TorchDatasetContextManager(converter.file_urls, 50, options, 0, None) as loader:
    seen["context"] = [batch["id"].tolist() for batch in loader]
with make_batch_reader(url, predicate=in_lambda(["id"], lambda ids: ids < 20)) as reader:
    assert isinstance(reader, Reader) and list(reader.schema.fields) == ["id"]
    seen["predicate"] = [reader.next().id.tolist()]
with DataLoader(make_batch_reader(url), batch_size=60, collate_fn=decimal_friendly_collate) as loader:
    seen["loader"] = [batch["id"].tolist() for batch in loader]
with petastorm.pytorch.BatchedDataLoader(petastorm.make_batch_reader(url), batch_size=60) as loader:
    seen["batched"] = [batch["id"].tolist() for batch in loader]
assert internal.DEFAULT_ROW_GROUP_SIZE_BYTES == 32 * 1024 * 1024
"""


def test_a_program_runs_with_nothing_changed_but_the_first_word_of_its_imports(tmp_path):
    """The command of docs/petastorm.md changes it."""
    where = write_rows(tmp_path / "set")
    (tmp_path / "code").mkdir()
    program = tmp_path / "code" / "train.py"
    program.write_text(PROGRAM)
    (command,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    subprocess.run(["bash", "-ec", command], cwd=program.parent, check=True, timeout=500)
    changed = [line for line in program.read_text().splitlines() if line not in PROGRAM.splitlines()]
    assert len(changed) == 9
    names = {"url": url(where)}
    exec(program.read_text(), names)
    seen = names["seen"]
    assert sorted(number for ids, _ in seen["converter"] for number in ids) == list(range(120))
    assert all(twice == [2 * number for number in ids] for ids, twice in seen["converter"])
    assert sorted(number for number in seen["predicate"][0]) == list(range(20))
    for each in ("context", "loader", "batched"):
        assert sorted(number for ids in seen[each] for number in ids) == list(range(120)), each


# ---------------------------------------------------------------- schemas and codecs

POINTS = UnischemaField("points", np.float32, (2, None), NdarrayCodec(), False)
IMAGE = UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("png"), False)
SCHEMA = Unischema("Scene", [UnischemaField("id", np.int64, ()), POINTS, IMAGE])


def test_a_schema_has_its_columns_as_attributes_and_views_by_field_or_pattern():
    assert SCHEMA.points is POINTS
    assert list(SCHEMA._fields) == ["id", "points", "image"]  # of programs that know Petastorm's own attribute
    assert list(SCHEMA.create_schema_view([SCHEMA.image, "i."]).fields) == ["id", "image"]
    assert match_unischema_fields(SCHEMA, ["p.*"]) == [POINTS]
    assert UnischemaField("points", np.float32, (2, None)) == POINTS
    assert POINTS != IMAGE
    assert pickle.loads(pickle.dumps(SCHEMA)).image == IMAGE
    with pytest.raises(AttributeError, match="no column 'depth'; its columns are id, points, image"):
        SCHEMA.depth  # noqa: B018
    with pytest.raises(ValueError, match="does not belong"):
        SCHEMA.create_schema_view([UnischemaField("depth", np.int8, ())])


def test_fields_of_a_schema_choose_columns(tmp_path):
    module = importlib.import_module(OURS)
    where = write_rows(tmp_path / "set", id_2=float, x=float)
    with module.make_batch_reader(url(where), schema_fields=[SCHEMA.id, "x"]) as reader:
        assert list(reader.schema.fields) == ["id", "x"]


@pytest.mark.parametrize("codec", [NdarrayCodec(), CompressedNdarrayCodec()])
def test_arrays_are_decoded_as_they_were_encoded(codec):
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(codec.decode(POINTS, codec.encode(POINTS, value)), value)
    for wrong, message in ((value.astype(int), "float32"), (value.T, "dimensions"), ([1], "ndarray")):
        with pytest.raises(ValueError, match=message):
            codec.encode(POINTS, wrong)


def test_a_pickled_array_is_never_loaded():
    with pytest.raises(ValueError, match="pickle"):
        NdarrayCodec().decode(POINTS, np_bytes(np.array([object()])))


def np_bytes(value):
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    return file.getvalue()


def test_a_png_has_the_pixels_and_a_jpeg_is_close():
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert np.array_equal(IMAGE.codec.decode(IMAGE, IMAGE.codec.encode(IMAGE, pixels)), pixels)
    grey = UnischemaField("grey", np.uint8, (None, None))
    jpeg = CompressedImageCodec("jpeg", 95)
    plain = np.full((8, 8), 77, np.uint8)
    assert np.abs(jpeg.decode(grey, jpeg.encode(grey, plain)).astype(int) - 77).max() <= 2
    assert str(jpeg) == "CompressedImageCodec('jpeg', 95)"


def png(rows, depth, colours):
    """Return a PNG file, made by hand, of rows of bytes without filters."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colours]
    head = struct.pack(">IIBBBBB", len(rows[0]) * 8 // (depth * channels), len(rows), depth, colours, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


GREY, RGB, GREY_ALPHA, RGBA = 0, 2, 4, 6
NUMBERS = struct.pack(">12H", 3000, 4000, 5000, 6000, 0, 1, 2, 3, 65535, 257, 256, 255)
SHAPE = (None, None)


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        (png([bytes([1, 2]), bytes([254, 255])], 8, GREY), np.uint8, [[1, 2], [254, 255]]),
        (png([NUMBERS[:4]], 16, GREY), np.uint16, [[3000, 4000]]),
        (png([bytes([1, 2, 3, 4, 5, 6])], 8, RGB), np.uint8, [[[1, 2, 3], [4, 5, 6]]]),
        (png([b"\xa0"], 1, GREY), np.uint8, [[255, 0, 255, 0, 0, 0, 0, 0]]),
        (png([NUMBERS[:12]], 16, RGB), np.uint16, "16 bits for each of several channels"),
        (png([NUMBERS[:12]], 16, RGB), np.uint8, "16 bits for each of several channels"),
        (png([NUMBERS[:8]], 16, GREY_ALPHA), np.uint16, "16 bits for each of several channels"),
        (png([NUMBERS[:8]], 16, RGBA), np.uint16, "16 bits for each of several channels"),
        (png([bytes(8)], 8, RGBA), np.uint8, "unexpected image dimensions"),
        (png([bytes(8)], 8, GREY_ALPHA), np.uint8, "unexpected image dimensions"),
        (png([bytes(8)], 8, GREY), np.uint16, "the image has pixels of uint8, and the field declares uint16"),
        (png([bytes(8)], 16, GREY), np.uint8, "the image has pixels of uint16, and the field declares uint8"),
    ],
)
def test_pixels_are_those_of_the_file_or_it_is_refused(data, dtype, expected):
    field = UnischemaField("image", dtype, SHAPE, CompressedImageCodec("png"))
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=f"image: .*{expected}"):
            field.codec.decode(field, data)
    else:
        pixels = field.codec.decode(field, data)
        assert (pixels.dtype, pixels.tolist()) == (dtype, expected)


@pytest.mark.parametrize("format", ["png", "jpeg", "jpg"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32, np.bool_])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3), (2, 3, 4), (2, 3, 1)])
def test_an_image_of_each_type_is_encoded_exactly_or_refused(format, dtype, shape):
    pixels = (np.arange(np.prod(shape)).reshape(shape) * 300 % 65536).astype(dtype)
    field = UnischemaField("image", dtype, shape, CompressedImageCodec(format))
    if dtype == np.uint8 and shape in ((2, 3), (2, 3, 3)):
        decoded = field.codec.decode(field, field.codec.encode(field, pixels))
        assert (decoded.shape, decoded.dtype) == (shape, dtype)
        assert format != "png" or np.array_equal(decoded, pixels)
    elif dtype == np.uint16 and shape == (2, 3) and format == "png":
        assert np.array_equal(field.codec.decode(field, field.codec.encode(field, pixels)), pixels)
    else:
        with pytest.raises(ValueError, match=r"image: .*(cannot be written as|unexpected image dimensions)"):
            field.codec.encode(field, pixels)


def test_a_palette_is_resolved_and_transparency_refused():
    image = PIL.Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putpixel((1, 0), 1)
    for options in ({}, {"transparency": 0}):
        file = io.BytesIO()
        image.save(file, "PNG", **options)
        if options:
            with pytest.raises(ValueError, match="unexpected image dimensions"):
                IMAGE.codec.decode(IMAGE, file.getvalue())
        else:
            assert IMAGE.codec.decode(IMAGE, file.getvalue()).tolist() == [[[0, 0, 0], [10, 20, 30]]]


def test_the_recipe_for_images_refuses_what_it_would_change(tmp_path):
    module = importlib.import_module(OURS)
    pq.write_table(pa.table({"image": [png([NUMBERS[:12]], 16, RGB)]}), tmp_path / "a.parquet")
    field = UnischemaField("image", np.uint16, (1, 2, 3), CompressedImageCodec("png"), False)

    def decode(frame):
        frame["image"] = [field.codec.decode(field, data) for data in frame["image"]]
        return frame

    spec = module.TransformSpec(decode, edit_fields=[field])
    with (
        module.make_batch_reader(f"file://{tmp_path}", transform_spec=spec) as reader,
        pytest.raises(ValueError, match="image: a PNG file with 16 bits for each of several channels"),
    ):
        next(reader)


def test_edited_fields_are_tuples_of_four_or_fields():
    module = importlib.import_module(OURS)
    field = UnischemaField("x", np.float32, (2,), NdarrayCodec(), True)
    spec = module.TransformSpec(None, edit_fields=[field, ("y", np.int64, (), False), ["z", np.int8, (), True]])
    assert list(spec.edit_fields) == [
        ("x", np.float32, (2,), True), ("y", np.int64, (), False), ("z", np.int8, (), True),
    ]  # fmt: skip
    for wrong in ("x", ("x", np.int8), ("x", np.int8, (), None, True)):
        with pytest.raises(ValueError, match=r"must contain \(name, numpy type, shape, nullable\) or UnischemaFields"):
            module.TransformSpec(None, edit_fields=[wrong])


def test_text_bytes_and_decimals_are_collated_as_they_are_given():
    collate = importlib.import_module(f"{OURS}.pytorch").decimal_friendly_collate
    tens = Decimal(10), Decimal(20)
    assert collate(list(tens)) == list(tens)
    assert collate([(1, "a", tens[0]), (2, "b", tens[1])])[1:] == [("a", "b"), tens]
    assert collate([{"x": b"1"}, {"x": b"2"}]) == {"x": [b"1", b"2"]}


def test_a_scalar_becomes_a_python_value_and_the_fields_type():
    codec, field = ScalarCodec("long"), UnischemaField("id", np.int64, ())
    assert codec.encode(field, np.int64(3)) == 3
    assert type(codec.encode(field, np.int64(3))) is int
    assert codec.decode(field, 3) == np.int64(3)
    with pytest.raises(TypeError, match="expected a scalar"):
        codec.encode(field, [1, 2])
