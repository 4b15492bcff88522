"""Refusals of `convert` before it reads: places of no kind, folders of several formats, settings, cut files."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from smalti import convert
from smalti.errors import ArgumentError, ArgumentTypeError, FormatError, SmaltiError, StoreNotFound
from smalti.images.pixels import encode_jpeg
from tests.sources.archives import tar_bytes


@pytest.mark.parametrize("place", [None, 5, ["a.csv"], {"a": 1}, pa.table({"a": [1]})], ids=str)
def test_what_is_no_place_is_refused_by_its_type(tmp_path, place):
    with pytest.raises(ArgumentTypeError, match=f"found {type(place).__name__}"):
        convert(place, tmp_path / "set", processes=1)


@pytest.mark.parametrize(("parquet", "csv"), [(1, 1), (2, 1), (1, 3)])
def test_rows_of_two_formats_are_refused_whichever_has_more_files(tmp_path, parquet, csv):
    (tmp_path / "in").mkdir()
    for number in range(parquet):
        pa.parquet.write_table(pa.table({"a": [number]}), tmp_path / "in" / f"{number}.parquet")
    for number in range(csv):
        (tmp_path / "in" / f"{number}.csv").write_text("a\n1\n")
    with pytest.raises(SmaltiError, match="several formats, and rows of the others would be left out"):
        convert(tmp_path / "in", tmp_path / "set", processes=1)
    assert convert(tmp_path / "in", tmp_path / "set", format="csv", processes=1).rows == csv


def test_what_is_left_out_is_named_where_no_format_is_recognised(tmp_path):
    """The index of LitData is a pipe, and is not read."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "chunk-0-0.bin").write_bytes(b"1")
    os.mkfifo(tmp_path / "in" / "index.json")
    with pytest.raises(SmaltiError, match=r"of no format that is recognised") as caught:
        convert(tmp_path / "in", tmp_path / "set", processes=1)
    assert "left out: 1 pipes, sockets or devices (index.json)" in caught.value.message


def write_rows(path):
    """Write a file of one row, in the format of its ending."""
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.table({"a": [1]}), path)
    elif path.suffix == ".tar":
        path.write_bytes(tar_bytes({"1.txt": b"1"}, "w"))
    else:
        path.write_text('{"a": 1}\n' if path.suffix == ".jsonl" else "a\n1\n")


FORMATS = ("parquet", "csv", "jsonl", "tar")


def with_formats(cases):
    """Return each case with each format: with one of them, by turns, in the default run."""
    return [
        pytest.param(*case, each, marks=() if place == number % len(FORMATS) else pytest.mark.nightly)
        for number, case in enumerate(cases)
        for place, each in enumerate(FORMATS)
    ]


@pytest.mark.parametrize(
    ("numbers", "says", "format"),
    with_formats([
        ((0, 2), r"x-00001-of-00003.*: 1 of 3 files with such names are missing"),
        ((0, 7, 8), r"x-00001-of-00003.*: 2 of 3 files with such names are missing"),
        ((1, 2), r"x-00000-of-00003.*: 1 of 3 files with such names are missing"),
        ((2, 3), r"x-00001-of-00003.*: 1 of 3 files with such names are missing"),
        ((0, 1, 2, 7), r"x-00007-of-00003.*: 1 files with such names have numbers above those of all 3 files"),
        ((0, 1, 2), None),
        ((1, 2, 3), None),
    ]),
)  # fmt: skip
def test_files_that_are_numbered_of_a_number_are_read_if_they_are_all_there(tmp_path, format, numbers, says):
    (tmp_path / "in").mkdir()
    for number in numbers:
        write_rows(tmp_path / "in" / f"x-{number:05}-of-00003.{format}")
    place = tmp_path / "in"
    if says is not None:
        with pytest.raises((StoreNotFound, FormatError), match=says):
            convert(place, tmp_path / "set", processes=1)
        place = f"{place}/x-*"  # as the error advises
    assert convert(place, tmp_path / "set", processes=1).rows == len(numbers)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"seed": "x"}, "`seed` must be a whole number"),
        ({"seed": None}, "`seed` must be a whole number"),
        ({"validation_fraction": "abc"}, "`validation_fraction` of images: expected a share"),
        ({"validation_fraction": 2}, "`validation_fraction` of images: expected a share"),
        ({"test_fraction": float("nan")}, "`test_fraction` of images: expected a share"),
        ({"validation_fraction": 0.9, "test_fraction": 0.9}, "leave no images to train on"),
        ({"fixed_splits": "no"}, "`fixed_splits` must be True or False"),
    ],
)
def test_settings_of_images_that_cannot_be_used_are_refused_by_name(tmp_path, settings, says):
    for name in ("a/1.jpg", "b/1.jpg"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(encode_jpeg(np.zeros((8, 8, 3), np.uint8), 90))
    with pytest.raises(ArgumentError, match=says):
        convert(tmp_path / "in", tmp_path / "set", settings=settings, processes=1)


@pytest.mark.parametrize("line", [b'{"\xe9": 1}\n', b'{"a": {"\xe9": 1}}\n', b'{"a": "\xe9"}\n'])
def test_json_lines_that_are_not_utf_8_are_refused_with_their_line(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "x"}\n' + line)
    with pytest.raises(FormatError, match=r"a\.jsonl, line 2: text that is not UTF-8"):
        convert(tmp_path / "a.jsonl", tmp_path / "set", processes=1)


@pytest.mark.parametrize("batches", [1, 5, 9])
def test_a_dataset_of_hugging_face_that_was_cut_behind_a_batch_is_refused(tmp_path, batches):
    """Small numbers end in zeros, as the mark of the end does."""
    features = {"a": {"dtype": "int64", "_type": "Value"}}
    schema = pa.schema({"a": pa.int64()}, {b"huggingface": json.dumps({"info": {"features": features}}).encode()})
    (tmp_path / "in").mkdir()
    file, ends = tmp_path / "in" / "data-00000-of-00001.arrow", []
    with file.open("wb") as out, pa.ipc.new_stream(out, schema) as writer:
        ends.append(out.tell())
        for number in range(10):
            writer.write_batch(pa.record_batch([pa.array(range(number * 10, number * 10 + 10))], schema=schema))
            ends.append(out.tell())
    (tmp_path / "in" / "state.json").write_text(json.dumps({"_data_files": [{"filename": file.name}]}))
    (tmp_path / "in" / "dataset_info.json").write_text(json.dumps({"features": features}))
    assert convert(tmp_path / "in", tmp_path / "whole", processes=1).rows == 100
    file.write_bytes(file.read_bytes()[: ends[batches]])
    with pytest.raises(FormatError, match="damaged"):
        convert(tmp_path / "in", tmp_path / "set", processes=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["_metadata", "state.json"])
def test_a_file_beside_the_rows_that_is_far_too_large_is_not_read(tmp_path, name):
    """As a hole of 6 GB, which takes no space on the disk."""
    (tmp_path / "in").mkdir()
    pa.parquet.write_table(pa.table({"a": [1]}), tmp_path / "in" / "0.parquet")
    (tmp_path / "in" / "dataset_info.json").write_text('{"features": {}}')
    with (tmp_path / "in" / name).open("wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(SmaltiError, match="is larger than 536870912 bytes"):
        convert(tmp_path / "in", tmp_path / "set", processes=1)
