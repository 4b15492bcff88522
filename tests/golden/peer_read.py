"""Run by MosaicML's interpreter: read a set with its readers and write what was found; imports nothing of Smalti.

python peer_read.py FOLDER OUT.json local|streaming
"""

import base64
import hashlib
import json
import sys
import tempfile
from decimal import Decimal

import numpy as np
from PIL import Image


def plain(value):
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(value.tobytes()).decode()
        return {"ndarray": data, "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return {"scalar": base64.b64encode(value.tobytes()).decode(), "dtype": value.dtype.name}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, Image.Image):
        pixels = hashlib.sha256(value.tobytes()).hexdigest()
        return {"pixels_sha256": pixels, "mode": value.mode, "size": list(value.size)}
    if isinstance(value, list) and value and all(isinstance(item, Image.Image) for item in value):
        return {"list": [plain(item) for item in value]}
    return value


def main(folder, out, how):
    from streaming import LocalDataset, StreamingDataset

    if how == "local":
        dataset = LocalDataset(folder)
        samples = [dataset[i] for i in range(len(dataset))]
    else:
        with tempfile.TemporaryDirectory() as cache:
            dataset = StreamingDataset(
                remote=folder, local=cache, batch_size=1, shuffle=False, validate_hash="xxh3_64", num_canonical_nodes=1
            )
            samples = list(dataset)
            assert len(dataset) == len(samples)
    with open(out, "w") as file:
        json.dump([{name: plain(value) for name, value in sample.items()} for sample in samples], file)


if __name__ == "__main__":
    main(*sys.argv[1:])
