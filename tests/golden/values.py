"""Reading `expected.json` of the golden data, and comparing values with it."""

import base64
import hashlib
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from smalti.format import Shard, ShardInfo, parse_index

COMPRESSED = ("comp_br_5", "comp_bz2_9", "comp_gz_6", "comp_snappy", "comp_zstd_3", "comp_zstd_19")
SETS = ("scalars", "text", "arrays", "images", "image_lists", "one_per_shard", *COMPRESSED)


def expected(folder: Path) -> dict[str, Any]:
    """Return columns, options and samples, decoded."""
    spec = json.loads((folder / "expected.json").read_text())
    spec["samples"] = [{key: decode(value) for key, value in sample.items()} for sample in spec["samples"]]
    return spec


def decode(value: Any) -> Any:
    """Decode one value; images stay descriptions of their pixels."""
    if not isinstance(value, dict):
        return value
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "ndarray" in value:
        return np.frombuffer(base64.b64decode(value["ndarray"]), value["dtype"]).reshape(value["shape"])
    if "scalar" in value:
        return np.frombuffer(base64.b64decode(value["scalar"]), value["dtype"])[0]
    if "decimal" in value:
        return Decimal(value["decimal"])
    if value.keys() == {"list"}:
        return [decode(item) for item in value["list"]]
    return value


def index(folder: Path) -> list[ShardInfo]:
    """Return the shards of a golden set."""
    return parse_index((folder / "index.json").read_bytes(), where=str(folder / "index.json"))[0]


def open_shard(folder: Path, info: ShardInfo) -> Shard:
    """Open one shard, from the uncompressed file beside the compressed one."""
    return Shard.open(folder / info.raw.basename, info)


def assert_same(found: Any, wanted: Any) -> None:
    """Compare type, value, dtype and shape; images by the hash of their pixels."""
    if isinstance(wanted, list):
        assert isinstance(found, list)
        assert len(found) == len(wanted)
        for item, wanted_item in zip(found, wanted, strict=True):
            assert_same(item, wanted_item)
    elif isinstance(wanted, dict) and "pixels_sha256" in wanted:
        assert isinstance(found, Image.Image)
        pixels = hashlib.sha256(found.tobytes()).hexdigest()
        assert (found.mode, list(found.size), pixels) == (wanted["mode"], wanted["size"], wanted["pixels_sha256"])
    elif isinstance(wanted, np.ndarray | np.generic):
        assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
    else:
        assert type(found) is type(wanted)
        assert found == wanted
