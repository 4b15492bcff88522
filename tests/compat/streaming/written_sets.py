"""Run with `streaming` in place, MosaicML's or the alias: write sets of every format and encoding; imports no Smalti.

python written_sets.py FOLDER
"""

import io
import pickle
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from multiprocessing import get_context

import numpy as np
from PIL import Image
from streaming import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
from streaming.base.format.base import writer as base_writer
from streaming.base.format.mds import encodings
from streaming.base.util import merge_index


def image(i, mode="RGB"):
    return Image.new(mode, (3 + i, 2), 10 * i)


def jpeg(i):
    out = io.BytesIO()
    image(i).save(out, "JPEG")
    return out.getvalue()


NUMBERS = {name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}
FLOATS = {name: name for name in ("float16", "float32", "float64")}
TEXTS = {"bytes": "bytes", "str": "str", "int": "int", "i": "str_int", "f": "str_float", "d": "str_decimal"}
ARRAYS = {"free": "ndarray", "typed": "ndarray:float32", "fixed": "ndarray:int16:2,3"}
IMAGES = {"pil": "pil", "mask": "pil", "jpeg": "jpeg", "file": "jpeg", "png": "png"}
LISTS = {"p": "list[pil]", "j": "list[jpeg]", "n": "list[png]", "a": "jpeg_array", "b": "jpegarray"}
OBJECTS = {"json": "json", "list": "json", "pkl": "pkl"}


def numbers(i):
    return dict.fromkeys(NUMBERS, i) | dict.fromkeys(FLOATS, i / 3) | {"further": "dropped"}


def odd_numbers(i):
    """Return values that numpy converts: bytes as stored, floats to integers, infinities, arrays of no axes."""
    row = numbers(i)
    return row | {
        "int16": i + 0.7,
        "int32": np.int64(i),
        "float16": 1e9 * i,
        "float64": np.float32(i / 3),
        "uint8": bytes([i]),
    }


def texts(i):
    return {"bytes": bytes([i]), "str": "é" * i, "int": -i, "i": 10**30 + i, "f": i / 3, "d": Decimal(f"{i}.50")}


def stored_texts(i):
    return {name: f"{i}".encode().rjust(8) for name in TEXTS}


def arrays(i):
    free = np.arange(i + 1, dtype=["uint8", "int64", "float16"][i % 3])
    return {"free": free, "typed": np.full((i + 1, 300), i, "float32"), "fixed": np.full((2, 3), i, "int16")}


def images(i):
    return {"pil": image(i), "mask": image(i, "P"), "jpeg": image(i), "file": jpeg(i), "png": image(i, "L")}


def lists(i):
    pictures = [image(k) for k in range(i % 3)]
    return {"p": pictures, "j": pictures, "n": pictures, "a": [jpeg(i)], "b": [bytearray(jpeg(i))] * 2}


def objects(i):
    return {"json": {"é": [i, None, 1e300]}, "list": np.arange(i), "pkl": (i, "a") if i % 2 else pickle.dumps([i])}


class Reversed(encodings.Encoding):
    """Text backwards: under a new name, and over MDS's own `str`."""

    def encode(self, obj):
        return obj[::-1].encode()

    def decode(self, data):
        return data.decode()[::-1]


class Tiny(encodings.Encoding):
    """Whole numbers of one byte, over MDS's own `int`."""

    size = 1

    def encode(self, obj):
        return bytes([obj])

    def decode(self, data):
        return data[0]


class Tagged(MDSWriter):
    """Adds a column to each sample."""

    def encode_sample(self, sample):
        return super().encode_sample({**sample, "tag": len(self.shards)})


def write(writer, rows):
    with writer:
        for row in rows:
            writer.write(row)


def rows(make, count=12):
    return [make(i) for i in range(count)]


def write_part(out, part):
    write(
        MDSWriter(columns={"id": "int"}, out=f"{out}/{part:02}", size_limit=200),
        [{"id": part * 100 + i} for i in range(9)],
    )


def write_mds(folder):
    kinds = {
        "texts": TEXTS,
        "stored_texts": TEXTS,
        "arrays": ARRAYS,
        "images": IMAGES,
        "lists": LISTS,
        "objects": OBJECTS,
    }
    kinds |= {"numbers": NUMBERS | FLOATS, "odd_numbers": NUMBERS | FLOATS}
    for name, kind in kinds.items():
        columns = dict(reversed(kind.items()))
        if name == "stored_texts":
            columns["d"] = "str"
        write(MDSWriter(columns=columns, out=f"{folder}/{name}", size_limit=3000), rows(globals()[name]))
    columns = {"str": "str", "int": "int"}
    for name in ("br:1", "bz2:2", "snappy", "zstd", "zstd:7", "gz:3"):
        out = f"{folder}/{name.replace(':', '_')}"
        write(MDSWriter(columns=columns, out=out, compression=name, size_limit="0.4kb"), rows(texts))
    write(MDSWriter(columns=columns, out=f"{folder}/hashes", hashes=["sha1", "xxh64"], size_limit=400), rows(texts))
    write(MDSWriter(columns=columns, out=f"{folder}/whole", size_limit=None), rows(texts))
    write(MDSWriter(columns=columns, out=f"{folder}/large_first", size_limit=250), rows(lambda i: texts(50 * (i == 0))))
    write(MDSWriter(columns=columns, out=f"{folder}/empty"), [])
    write(Tagged(columns=columns | {"tag": "uint8"}, out=f"{folder}/tagged", size_limit=400), rows(texts))
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        list(pool.map(write_part, [f"{folder}/parts"] * 3, range(3)))
    merge_index(f"{folder}/parts", keep_local=True)


def write_lines(folder):
    columns = {"b": "str", "a": "int", "c": "float"}
    kinds = {"json": JSONWriter, "csv": CSVWriter, "tsv": TSVWriter}
    for name, kind in kinds.items():
        for compression in (None, "zstd:3"):
            out = f"{folder}/{name}_{compression is not None}"
            write(kind(columns=columns, out=out, compression=compression, size_limit=60), rows(line))
    write(JSONWriter(columns=columns, out=f"{folder}/booleans"), rows(lambda i: line(i) | {"a": i > 3}))
    write(XSVWriter(columns=columns, separator="||", newline="\r\n", out=f"{folder}/xsv", size_limit=60), rows(line))
    write(CSVWriter(columns=columns, out=f"{folder}/large_line", size_limit=10, hashes=["md5"]), rows(line, 3))


def line(i):
    return {"a": i, "b": f"é {i}", "c": [i / 3, float("inf")][i == 5], "further": None}


def write_custom(folder):
    for name, kind in {"backwards": Reversed, "str": Reversed, "int": Tiny}.items():
        encodings._encodings[name] = kind
    columns = {"a": "backwards", "b": "str", "c": "int"}
    write(
        MDSWriter(columns=columns, out=f"{folder}/custom", size_limit=400),
        rows(lambda i: {"a": f"a{i}", "b": f"b{i}", "c": i}),
    )


def main(folder):
    if hasattr(base_writer, "sleep"):  # MosaicML's writer waits a second for its threads, again and again
        base_writer.sleep = lambda _: time.sleep(0.01)
    write_mds(folder)
    write_lines(folder)
    write_custom(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
