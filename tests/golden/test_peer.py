"""MosaicML's own readers open what Smalti writes, and find the same values."""

import hashlib
from decimal import Decimal
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from smalti.catalog import load_manifest
from smalti.writer import MDSWriter
from tests.format.columns import image_bytes
from tests.golden.conftest import peer_reads
from tests.golden.values import assert_same

pytestmark = [pytest.mark.process, pytest.mark.slow]

SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
COLUMNS = {
    "bytes": "bytes",
    "é str": "str",
    "int": "int",
    **{name: name for name in SCALARS},
    "str_int": "str_int",
    "str_float": "str_float",
    "str_decimal": "str_decimal",
    "any": "ndarray",
    "typed": "ndarray:int16",
    "fixed": "ndarray:float32:2,3",
    "pil": "pil",
    "jpeg": "jpeg",
    "png": "png",
    "json": "json",
    "jpegs": "list[jpeg]",
    "pngs": "list[png]",
    "pils": "list[pil]",
    "video": "jpeg_array",
}


def sample(i):
    return {
        "bytes": bytes([i, 0, 255]) * (i % 4),
        "é str": "日本語\0" * (i % 3),
        "int": -(10**i),
        **{name: np.dtype(name).type(i + 1) / np.dtype(name).type(1) if "f" in name else i + 1 for name in SCALARS},
        "str_int": 10 ** (3 * i),
        "str_float": i / 7,
        "str_decimal": Decimal(i) / 8,
        "any": np.arange(i + 1, dtype=[np.uint8, ">i4", np.float16][i % 3]).reshape(1, -1),
        "typed": np.full((i + 1, 2), -i, np.int16),
        "fixed": np.arange(6, dtype=np.float32).reshape(3, 2).T * i,
        "pil": Image.new(["RGB", "L", "1"][i % 3], (9, 3), 1),
        "jpeg": image_bytes("JPEG", (16, 8), 20 * i),
        "png": image_bytes("PNG", (5, 4), 20 * i),
        "json": {"k": [i, None, True, 1.5], "é": "x" * i},
        "jpegs": [image_bytes("JPEG", (8, 8), 9 * i + k) for k in range(1 + i % 3)],
        "pngs": [image_bytes("PNG", (3, 2), 9 * i + k) for k in range(1 + i % 3)],
        "pils": [Image.new(["RGB", "L"][k % 2], (4, 2), 1) for k in range(1 + i % 3)],
        "video": [image_bytes("JPEG", (8, 8), i), image_bytes("JPEG", (16, 8), i)],
    }


@pytest.mark.parametrize(("how", "compression"), [("local", None), ("streaming", "br:5")])
def test_peer_finds_every_value_that_was_written(peer, tmp_path, how, compression):
    samples = [sample(i) for i in range(9)]
    with MDSWriter(out=tmp_path / "set", columns=COLUMNS, compression=compression, size_limit=9000) as writer:
        for row in samples:
            writer.write(row)
    assert writer.manifest is not None
    assert len(writer.manifest.shards) > 2
    found = peer_reads(peer, tmp_path / "set", tmp_path / "found.json", how)
    assert len(found) == len(samples)
    for row, expected in zip(found, samples, strict=True):
        assert set(row) == set(COLUMNS)
        for name, value in expected.items():
            compare(row[name], value, COLUMNS[name])


@pytest.mark.parametrize("compression", ["bz2:5", "gz", "snappy", "zstd:7"])
def test_peer_unpacks_every_compression_also_beside_uncompressed_shards(peer, tmp_path, compression):
    out, columns = tmp_path / "set", {"a": "str"}
    for rows, chosen, mode in ((range(20), compression, None), (range(20, 30), None, "append")):
        with MDSWriter(out=out, columns=columns, compression=chosen, size_limit=500, mode=mode) as writer:
            for i in rows:
                writer.write({"a": f"{i} " * i})
    assert {info.compression for info in load_manifest(out).shards} == {compression, None}
    found = peer_reads(peer, tmp_path / "set", tmp_path / "found.json", "streaming")
    assert [row["a"] for row in found] == [f"{i} " * i for i in range(30)]


def compare(found, value, encoding):
    if encoding.startswith("list[") or encoding == "jpeg_array":
        assert len(found) == len(value)
        for one, other in zip(found, value, strict=True):
            compare(one, other, "jpeg")
    elif encoding in {"jpeg", "png", "pil"}:
        image = value if isinstance(value, Image.Image) else Image.open(BytesIO(value))
        pixels = hashlib.sha256(image.tobytes()).hexdigest()
        assert found == {"pixels_sha256": pixels, "mode": image.mode, "size": list(image.size)}
    elif encoding.startswith("ndarray"):
        native = value.astype(value.dtype.newbyteorder("="))
        assert (found.dtype, found.shape, found.tolist()) == (native.dtype, native.shape, native.tolist())
    elif encoding in SCALARS:
        assert found.dtype == np.dtype(encoding)
        assert found == value
    else:
        assert_same(found, value)


def test_peer_finds_every_value_of_arrow_batches(peer, tmp_path):
    tokens = np.arange(60, dtype=np.int32).reshape(10, 6)
    batch = pa.record_batch(
        {
            "id": pa.array(range(10)),
            "text": pa.array([f"é{i}" for i in range(10)]),
            "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), 6),
            "ragged": pa.array([list(range(i + 1)) for i in range(10)], pa.list_(pa.int64())),
        }
    )
    columns = {"id": "int", "text": "str", "tokens": "ndarray:int32:6", "ragged": "ndarray"}
    with MDSWriter(out=tmp_path / "set", columns=columns, compression="zstd", size_limit=700) as writer:
        writer.write_batch(batch)
    found = peer_reads(peer, tmp_path / "set", tmp_path / "found.json", "streaming")
    assert [row["id"] for row in found] == list(range(10))
    assert [row["text"] for row in found] == [f"é{i}" for i in range(10)]
    assert [row["tokens"].tolist() for row in found] == tokens.tolist()
    assert [row["ragged"].tolist() for row in found] == [list(range(i + 1)) for i in range(10)]
