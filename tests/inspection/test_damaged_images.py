"""A damaged image in a column of any kind is shown as damaged; it hides neither the other rows nor the page."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from smalti.inspection import head, preview, stats
from smalti.inspection.values import value_json, value_text
from smalti.writer import MDSWriter

SINGLE, LISTS = ("jpeg", "png", "pil"), ("list[jpeg]", "list[png]", "list[pil]", "jpeg_array", "jpegarray")
PIXELS = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)


def image_of(encoding):
    image = Image.fromarray(PIXELS)
    if "jpeg" not in encoding:
        return image
    file = io.BytesIO()
    image.save(file, "JPEG")
    return Image.open(file)


def write(root, encoding):
    image = image_of(encoding)
    with MDSWriter(out=str(root), columns={"id": "int", "x": encoding}, hashes=[]) as writer:
        for number in range(3):
            writer.write({"id": number, "x": [image, image] if encoding in LISTS else image})


def damage_middle_row(root):
    """Overwrite most of the bytes of the second of three rows."""
    (shard,) = root.rglob("*.mds")
    data = bytearray(shard.read_bytes())
    begin, end = (int.from_bytes(data[at : at + 4], "little") for at in (8, 12))
    data[begin + 12 : end] = bytes(end - begin - 12)
    shard.write_bytes(data)


@pytest.mark.parametrize("encoding", [*SINGLE, *LISTS])
def test_a_damaged_image_hides_no_other_row(tmp_path, encoding):
    write(tmp_path / "set", encoding)
    damage_middle_row(tmp_path / "set")
    found = head(tmp_path / "set")
    assert [row["id"] for row in found.rows] == [0, 1, 2]
    texts = [value_text(row["x"], encoding) for row in found.rows]
    assert texts[0] == texts[2]
    assert "32x24" in texts[0]
    assert texts[1] != texts[0]
    assert value_json(found.rows[0]["x"], encoding) != value_json(found.rows[1]["x"], encoding)
    assert stats(tmp_path / "set").num_rows == 3
    assert preview(tmp_path / "set", tmp_path / "page.html").num_rows == 3
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/webp") == 2
    assert len(re.findall('"fault": true', page)) == 1
