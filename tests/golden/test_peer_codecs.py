"""MosaicML's own reader opens every compression, image lists and custom encodings that Smalti writes."""

import hashlib
import json
import os
import re
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smalti.format import Schema, ShardBuilder, ShardOptions, emit_index
from tests.format.columns import image_bytes
from tests.peer_program import minimal_env, run_alone

pytestmark = [pytest.mark.process, pytest.mark.slow]

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "encodings.md"
LEVELS = ("br", "br:0", "bz2", "bz2:1", "gz", "gz:0", "gz:1", "snappy", "zstd", "zstd:1", "zstd:22")
IMAGES = [[image_bytes(kind, (4 + i, 3), 40 * i) for i in range(3)] for kind in ("JPEG", "PNG")]
RAW = [Image.new("RGB", (5, 2), (1, 2, 3)), Image.new("1", (9, 3), 1)]
LISTS = {"a": "jpeg_array", "b": "jpegarray", "l": "list[jpeg]", "p": "list[png]", "q": "list[pil]"}
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def write(folder, columns, samples, compression=None):
    options = ShardOptions(compression, ("xxh64",), 2000)
    builder, filled = ShardBuilder(Schema.from_columns(columns), options), []
    for sample in samples:
        filled += builder.add(sample)
    shards = [shard.seal() for shard in [*filled, *builder.finish()]]
    folder.mkdir(parents=True)
    for shard in shards:
        for file, payload in zip(shard.info.stored_files, shard.payloads, strict=True):
            (folder / file.basename).write_bytes(payload)
    (folder / "index.json").write_bytes(emit_index([shard.info for shard in shards]))


def texts(i):
    return {"id": i, "text": "abc é " * i, "noise": hashlib.sha256(bytes([i])).digest()}


def waves():
    return [np.exp(1j * np.arange(n)).astype(np.complex64) for n in range(1, 5)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the peer's reader found in each set, by the set's name."""
    chosen, beside = os.environ.get("SMALTI_PEER_PYTHON"), Path(sys.prefix) / "peer"
    if not chosen and not (beside / "streaming").is_dir():
        missing = f"needs MosaicML Streaming in {beside}: `make setup` lays it there"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    base = tmp_path_factory.mktemp("peer")
    for level in LEVELS:
        columns = {"id": "int", "text": "str", "noise": "bytes"}
        write(base / "sets" / level.replace(":", "_"), columns, map(texts, range(40)), level)
    jpegs, pngs = IMAGES
    rows = [
        {"a": jpegs, "b": jpegs[:1], "l": jpegs, "p": pngs, "q": RAW},
        {"a": jpegs, "b": jpegs, "l": [], "p": [], "q": []},
    ]
    write(base / "sets" / "lists", LISTS, rows)
    exec(BLOCKS[0], {"__name__": "docs_encodings"})
    write(base / "sets" / "signal", {"wave": "signal:64"}, [{"wave": wave} for wave in waves()])
    (taught,) = [block for block in BLOCKS if block.startswith("# mosaicml")]
    (base / "taught.py").write_text(taught)
    paths = [HERE, HERE / "peer_stubs", *([] if chosen else [beside])]
    command = [
        chosen or sys.executable,
        HERE / "peer_codecs.py",
        base / "sets",
        base / "found.json",
        base / "taught.py",
    ]
    run_alone(command, minimal_env(paths))
    return json.loads((base / "found.json").read_text())


@pytest.mark.parametrize("level", LEVELS)
def test_peer_reads_every_compression(found, level):
    rows = found[level.replace(":", "_")]
    assert [row["id"] for row in rows] == list(range(40))
    assert [row["text"] for row in rows] == [texts(i)["text"] for i in range(40)]


def described(image):
    image = image if isinstance(image, Image.Image) else Image.open(BytesIO(image))
    pixels = hashlib.sha256(image.tobytes()).hexdigest()
    return {"pixels_sha256": pixels, "mode": image.mode, "size": list(image.size)}


def test_peer_reads_lists_of_images(found):
    first, second = found["lists"]
    jpegs, pngs = ([described(image) for image in images] for images in IMAGES)
    assert first == {"a": jpegs, "b": jpegs[:1], "l": jpegs, "p": pngs, "q": [described(image) for image in RAW]}
    assert second == {"a": jpegs, "b": jpegs, "l": [], "p": [], "q": []}


def test_peer_reads_a_custom_encoding_registered_there(found):
    assert [row["wave"] for row in found["signal"]] == [[[n.real, n.imag] for n in wave.tolist()] for wave in waves()]
