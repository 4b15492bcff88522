"""Every file of some packages on PyPI that `convert` reads, converted by itself and compared with another library.

A file is equal, row by row and value by value, or it is refused for one of the reasons below; what is wrong with it is
found by another library, too. The numbers in corpora_outcomes.json are exact, because the packages' versions are pinned
(SMALTI_UPDATE_SNAPSHOT=1 writes them).
"""

import ast
import io
import json
import os
import re
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from smalti.errors import SmaltiError
from tests.nightly.corpora import (
    Shipped,
    converted,
    csv_rows,
    is_written,
    json_rows,
    parquet_rows,
    plain,
    shipped,
    tar_rows,
    without_compression,
)
from tools.corpora import TARGET, WANTED

pytestmark = pytest.mark.nightly

OUTCOMES = Path(__file__).with_name("corpora_outcomes.json")
PACKAGES = [line.partition("==")[0] for line in WANTED.read_text().splitlines() if "==" in line]


def reason_of(error, reasons):
    """Return the reason of a refusal."""
    found = [reason for reason in reasons if reason in str(error)]
    assert found, str(error)
    return found[0]


def confirmed(error, reasons, *seen_by):
    """Return the reason of a refusal, which another library confirms."""
    reason = reason_of(error, reasons)
    assert reasons[reason](*seen_by), str(error)
    return reason


def has_other_lengths(file, delimiter):
    return len({len(row) for row in csv_rows(file.content.decode("utf-8-sig"), delimiter)}) > 1


def is_no_csv(file, delimiter):
    try:
        csv_rows(file.content.decode("utf-8-sig"), delimiter)
    except Exception:
        return True
    return False


def is_no_text(file, delimiter):
    try:
        return b"\0" in file.content or not file.content.decode()
    except UnicodeDecodeError:
        return True


def header_of(file, delimiter):
    return csv_rows(file.content.decode("utf-8-sig"), delimiter)[0]


CSV = {
    "the source has no rows": lambda file, mark: len(csv_rows(file.content.decode("utf-8-sig"), mark)) == 1,
    "the file is empty": lambda file, mark: not file.content,
    "the line is empty": lambda file, mark: file.content[:1] in b"\r\n",
    "differ only in case": lambda file, mark: (
        len({name.lower() for name in header_of(file, mark)}) < len(header_of(file, mark))
    ),
    "expected the columns' names in UTF-8": is_no_text,
    "text that is not UTF-8": is_no_text,
    "a NUL byte": is_no_text,
    "fields, found": has_other_lengths,
    "text follows a closing quote": is_no_csv,
    ".xz are not read": lambda file, mark: file.name.endswith(".xz"),
    ".br are not read": lambda file, mark: file.name.endswith(".br"),
}


def check_csv(file, folder, settings=None, outcome="equal"):
    """Convert a file, also as the error advises, and compare it with Python's reader."""
    settings = settings or {}
    is_tsv = without_compression(file.name).endswith(".tsv")
    delimiter = settings.get("delimiter", "\t" if is_tsv else ",")
    try:
        rows = converted(file, folder, "csv", settings)
    except SmaltiError as error:
        advised = re.search(r"settings=(\{'delimiter': '.+?'\})", str(error))
        if advised and "there is one column" in str(error):
            return check_csv(file, folder, ast.literal_eval(advised[1]), "equal with another delimiter")
        if "is there more than once" in str(error) or "a column has no name" in str(error):
            names = [f"c{place}" for place in range(len(header_of(file, delimiter)))]
            return check_csv(file, folder, {**settings, "header": True, "names": names}, "equal with names")
        return confirmed(error, CSV, file, delimiter)
    header, *expected = csv_rows(file.content.decode("utf-8-sig"), delimiter)
    header = settings.get("names", header)
    for number, row, texts in rows.beside(expected):
        assert (len(texts), set(row)) == (len(header), set(header)), number
        wrong = [(name, row[name], text) for name, text in zip(header, texts, strict=True)
                 if not is_written(row[name], text)]  # fmt: skip
        assert wrong == [], number
    return outcome


def is_no_json_lines(file):
    try:
        rows = json_rows(file.content)
    except ValueError:
        return True
    return not all(isinstance(row, dict) for row in rows)


JSON = {
    "no JSON: ": is_no_json_lines,
    "the line is no object": is_no_json_lines,
    "there are no lines with keys": lambda file: not any(json_rows(file.content)),
    "changed from ": lambda file: not is_no_json_lines(file),
}


def check_json(file, folder):
    try:
        rows = converted(file, folder, "jsonl")
    except SmaltiError as error:
        return confirmed(error, JSON, file)
    expected = json_rows(file.content)
    for number, row, values in rows.beside(expected):
        assert plain(row) == plain(values), number
    return "equal"


PARQUET = {
    "the source has no rows": lambda metadata: not metadata.num_rows,
    "a shard needs at least one column": lambda metadata: not metadata.num_columns,
}


def check_parquet(file, folder, columns=None, outcome="equal"):
    try:
        rows = converted(file, folder, "parquet", columns=columns)
    except SmaltiError as error:
        if uneven := re.search(r"column '(.*)' \(.*a nested list of uneven lengths", str(error)):
            schema = pq.read_schema(io.BytesIO(file.data))
            columns = {name: "json" if name == uneven[1] else None for name in schema.names}
            return check_parquet(file, folder, columns, "equal as JSON")
        return confirmed(error, PARQUET, pq.read_metadata(io.BytesIO(file.data)))
    expected = parquet_rows(file.content)
    for number, row, values in rows.beside(expected):
        assert plain(row) == plain(values), number
    return outcome


def pixels_of(data):
    with Image.open(io.BytesIO(data)) as image:
        return image.size, np.asarray(image.convert("RGBA")).tobytes()


def has_no_pixels(file):
    try:
        pixels_of(file.data)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return True
    return False


IMAGES = {"is not a usable image": has_no_pixels, "expected a ": has_no_pixels}


def check_image(file, folder):
    try:
        [row] = converted(file, folder, "images").rows
    except SmaltiError as error:
        confirmed(error, IMAGES, file)
        return "refused"
    assert (row["class_name"], row["path"]) == ("class", f"class/{file.name}")
    image = row["image"]
    try:
        size, pixels = pixels_of(file.data)
    except (OSError, ValueError, SyntaxError):
        return "damaged in its pixels"
    assert (row["width"], row["height"]) == size
    assert (image == file.data) if isinstance(image, bytes) else image.convert("RGBA").tobytes() == pixels
    return "equal"


TAR = (
    "the tar files have no samples",
    "is damaged or not an archive",
    "the sample is incomplete",
    "has an unsafe name",
    "which the first sample has not",
)


def check_tar(file, folder):
    try:
        rows = converted(file, folder, "webdataset")
    except SmaltiError as error:
        return reason_of(error, TAR)
    expected = tar_rows(file.content)
    for _, row, (key, members) in rows.beside(list(expected.items())):
        assert row.pop("__key__", key) == key
        assert set(row) == set(members)
        for name, value in row.items():
            if isinstance(value, Image.Image):
                assert (value.size, value.convert("RGBA").tobytes()) == pixels_of(members[name])
            else:
                assert (value.encode() if isinstance(value, str) else value) == members[name]
    return "equal"


def check_array(file, folder):
    array = np.load(io.BytesIO(file.content), allow_pickle=False)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("sample.npy")
        member.size = len(file.content)
        tar.addfile(member, io.BytesIO(file.content))
    try:
        [row] = converted(Shipped("a.tar", packed.getvalue()), folder, "webdataset").rows
    except SmaltiError as error:
        return reason_of(error, ("which cannot be stored",))
    found = row["npy"]
    assert (found.dtype, found.shape) == (array.dtype.newbyteorder("="), array.shape)
    np.testing.assert_array_equal(found, array)
    return "equal"


FORMATS = {
    "csv": ((".csv", ".tsv"), check_csv),
    "json lines": ((".json", ".jsonl", ".ndjson", ".jsonlines"), check_json),
    "parquet": ((".parquet", ".pq", ".parq"), check_parquet),
    "images": ((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"), check_image),
    "tar": ((".tar", ".tgz"), check_tar),
    "arrays": ((".npy",), check_array),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_is_equal_or_refused_for_a_known_reason(tmp_path, package):
    [archive] = TARGET.glob(f"{re.sub('[-.]', '_', package)}-*.tar.gz")  # tools/corpora.py downloads it
    counts, faults = {}, []
    for number, file in enumerate(shipped(archive)):
        name = without_compression(file.name)
        for kind, (endings, check) in FORMATS.items():
            if not name.endswith(endings):
                continue
            try:
                outcome = check(file, tmp_path / str(number) / "source")
                counts.setdefault(kind, Counter())[outcome] += 1
            except Exception as error:
                faults.append(f"{file.path}: {type(error).__name__}: {str(error)[:300]}")
            shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    assert faults == []
    outcomes = json.loads(OUTCOMES.read_text())
    if os.environ.get("SMALTI_UPDATE_SNAPSHOT"):
        outcomes[package] = counts
        OUTCOMES.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n")
    assert counts == outcomes[package]


def test_thousands_of_files_are_compared():
    outcomes = json.loads(OUTCOMES.read_text())
    assert set(outcomes) == set(PACKAGES)
    counts = [counts for kinds in outcomes.values() for counts in kinds.values()]
    equal = sum(number for each in counts for outcome, number in each.items() if outcome.startswith("equal"))
    assert equal > 2000
