"""MosaicML's own readers open what Smalti writes, and find the same values.

mosaicml-streaming 0.13 is found in `<environment>/peer`, where `make setup` lays it, or in the interpreter that
`SMALTI_PEER_PYTHON` names; the tests are skipped where there is neither, except in CI, where that is a failure.
`peer_stubs` stands for packages that MosaicML imports at start and that reading needs nothing of.
"""

import hashlib
import json
import os
import subprocess
import sys
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from smalti.writer import MDSWriter
from tests.format.columns import image_bytes
from tests.golden.values import assert_same, decode

pytestmark = [pytest.mark.process, pytest.mark.slow]

HERE = Path(__file__).parent
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
    }


@pytest.fixture(scope="session")
def peer():
    """An interpreter that has the peer, and the folders to look for it."""
    chosen = os.environ.get("SMALTI_PEER_PYTHON")
    if chosen:
        return Path(chosen), [HERE / "peer_stubs"]
    beside = Path(sys.prefix) / "peer"
    if not (beside / "streaming").is_dir():
        missing = f"needs MosaicML Streaming in {beside}: `make setup` lays it there (see {sys.prefix}/install.log)"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return Path(sys.executable), [HERE / "peer_stubs", beside]


def peer_reads(peer, folder, out, how):
    python, paths = peer
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [python, HERE / "peer_read.py", folder, out, how],
        env={**keep, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [{name: decode(value) for name, value in row.items()} for row in json.loads(out.read_text())]


@pytest.mark.parametrize(("how", "compression"), [("local", None), ("streaming", "zstd:7"), ("streaming", None)])
def test_peer_finds_every_value_that_was_written(peer, tmp_path, how, compression):
    samples = [sample(i) for i in range(9)]
    with MDSWriter(out=tmp_path / "set", columns=COLUMNS, compression=compression, size_limit=4000) as writer:
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


def compare(found, value, encoding):
    if encoding in {"jpeg", "png", "pil"}:
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
