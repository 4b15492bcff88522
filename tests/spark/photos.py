"""Small image files of many kinds for these tests."""

import io
from pathlib import Path

from PIL import Image


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def encode(kind: str, mode: str) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (40, 30), 90).save(out, kind)
    return out.getvalue()
