"""Run by MosaicML's interpreter: read every set of a folder in one process; imports nothing of Smalti.

python peer_codecs.py FOLDER OUT.json CODE.py      CODE.py is run first: it teaches the reader a custom encoding
"""

import json
import sys
import tempfile
from pathlib import Path

from peer_read import plain


def described_value(value):
    """Describe a value as `plain` does, with support for lists of images and complex numbers."""
    if isinstance(value, list):
        return [described_value(item) for item in value]
    if getattr(value, "dtype", None) is not None and value.dtype.kind == "c":
        return [[number.real, number.imag] for number in value.tolist()]
    return plain(value)


def read(folder):
    from streaming import StreamingDataset

    with tempfile.TemporaryDirectory() as cache:
        dataset = StreamingDataset(
            remote=str(folder), local=cache, batch_size=1, shuffle=False, validate_hash="xxh64", num_canonical_nodes=1
        )
        return [{name: described_value(value) for name, value in sample.items()} for sample in dataset]


def main(root, out, code):
    exec(Path(code).read_text(), {"__name__": "registration"})
    found = {folder.name: read(folder) for folder in sorted(Path(root).iterdir())}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
