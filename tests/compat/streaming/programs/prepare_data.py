"""Writes the data of the training scripts: tokens, captioned pictures, and two sets of questions and answers."""

import argparse
import os

import numpy as np
from PIL import Image
from streaming import MDSWriter


def write_tokens(out):
    rng = np.random.default_rng(17)
    with MDSWriter(columns={"tokens": "bytes"}, out=out, compression="zstd", hashes=["sha1"], size_limit=1 << 11) as to:
        for _ in range(120):
            tokens = rng.integers(0, 50000, size=rng.integers(20, 40), dtype=np.int64)
            to.write({"tokens": tokens.tobytes()})


def write_pictures(out, keys):
    columns = {"image": "jpeg", "caption": "str", "key": "int"}
    with MDSWriter(columns=columns, out=out, hashes=["xxh64"], size_limit=1 << 13) as to:
        for i in keys:
            image = Image.new("RGB", (24 + i % 5, 24), (4 * i % 256, 90, 255 - 4 * i))
            to.write({"image": image, "caption": f"picture {i}", "key": i})


def write_questions(out, name, count):
    columns = {"prompt": "str", "response": "str", "weights": "ndarray:float32", "meta": "json"}
    with MDSWriter(columns=columns, out=out, size_limit="2kb") as to:
        for i in range(count):
            weights = np.linspace(0, 1, 3 + i % 4, dtype=np.float32)
            to.write({"prompt": f"{name} {i}?", "response": "yes" * (i % 3), "weights": weights, "meta": {"at": [i]}})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    out = parser.parse_args().out
    write_tokens(os.path.join(out, "text", "train"))
    write_pictures(os.path.join(out, "pictures", "0"), range(60))
    write_pictures(os.path.join(out, "pictures", "1"), range(60, 100))
    write_questions(os.path.join(out, "web"), "web", 90)
    write_questions(os.path.join(out, "code"), "code", 40)
