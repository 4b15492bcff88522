"""Targets that lie in their source, or around it: refused before anything is written."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti import MDSWriter, convert, copy_version, export, open_store
from smalti.conversion.files import check_target
from smalti.errors import CatalogError, SmaltiError
from smalti.storage.opening import check_apart


@pytest.fixture
def rows(tmp_path):
    """A folder of rows, `data/rows`, with a link to it, and to the folder above."""
    folder = tmp_path / "data" / "rows"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), folder / "a.parquet")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "above").symlink_to(tmp_path / "data")
    return folder


def entries(root):
    return sorted(os.path.join(folder, name) for folder, folders, files in os.walk(root) for name in folders + files)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("data/rows", "data/rows"),
        ("data/rows", "data/rows/"),
        ("data/rows", "data/other/../rows"),
        ("data/rows", "link"),
        ("link", "data/rows"),
        ("data/rows", "file://{root}/data/rows"),
        ("file://{root}/data/rows", "data/rows/set"),
        ("data/rows", "data/rows/set"),
        ("data/rows", "link/set"),
        ("data/rows", "above/rows/deep/set"),
        ("data/rows", "data"),
        ("data/rows", "above"),
        ("link", "data"),
        ("data/rows/a.parquet", "data/rows/a.parquet"),
        ("data/**", "data/set"),
        ("data/*/*", "data/set"),
        ("data/rows/*.parquet", "data/rows"),
        ("data/rows/*.parquet", "data"),
        ("data/rows/a.parquet", "data/rows"),
    ],
)
def test_a_set_in_its_source_or_around_it_is_refused_before_anything_is_written(
    rows, tmp_path, monkeypatch, source, target
):
    monkeypatch.chdir(tmp_path)
    before = entries(tmp_path)
    with pytest.raises(SmaltiError, match=r"is the same place as|lies inside|contains"):
        convert(source.format(root=tmp_path), target.format(root=tmp_path), processes=1, format="parquet")
    assert entries(tmp_path) == before


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("data/rows/*.parquet", "data/rows/set"),
        ("data/rows/a.parquet", "data/rows/set"),
        ("data/rows", "data/rows-set"),
        ("data/rows", "data/set"),
    ],
)
def test_places_beside_each_other_are_allowed(rows, tmp_path, monkeypatch, source, target):
    monkeypatch.chdir(tmp_path)
    assert convert(source, target, processes=1).rows == 2


@pytest.mark.parametrize("target", ["set", "set/copy", "alias", "alias/copy", "."])
def test_copies_and_exports_are_refused_too(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    with MDSWriter(out="set", columns={"id": "int"}) as out:
        out.write({"id": 1})
    (tmp_path / "alias").symlink_to("set")
    before = entries(tmp_path)
    with pytest.raises(CatalogError, match=r"its source .*/set; nothing was written"):
        copy_version("set", target)
    with pytest.raises(CatalogError, match=r"its source .*/set; nothing was written"):
        export("set", target, format="parquet")
    assert entries(tmp_path) == before


def test_addresses_of_two_servers_are_apart_and_spellings_of_one_are_not():
    here = {"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:1"}
    there = {**here, "endpoint_url": "http://127.0.0.1:2"}
    source = open_store("s3://bucket/rows/", here)
    check_apart(source, open_store("s3://bucket/rows", there), advice="")
    check_apart(source, open_store("s3://bucket/rows2", here), advice="")
    for target in ("s3://bucket/rows", "s3a://bucket/rows/set", "s3://bucket"):
        with pytest.raises(CatalogError):
            check_apart(source, open_store(target, here), advice="")
    with pytest.raises(CatalogError, match="lies inside"):
        check_target("s3://bucket/rows/**", here, open_store("s3://bucket/rows/set", here))
    check_target("s3://bucket/rows/*.csv", here, open_store("s3://bucket/rows/set", here))
