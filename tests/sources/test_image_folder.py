"""The inventory of a folder of images, and the errors for other folders."""

import os
import sys

import pytest

import smalti.spark
from smalti.errors import SmaltiError, StoreError, StoreNotFound
from smalti.sources.archive import fetch_archive
from smalti.sources.image_folder import join_folders, list_image_partitions, list_images


def put(path, data=b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_one_class_per_sub_folder(tmp_path):
    put(tmp_path / "roses" / "2.jpg", b"12")
    put(tmp_path / "roses" / "1.jpg", b"1")
    put(tmp_path / "daisy" / "deeper" / "3.jpg", b"123")
    folder = list_images(str(tmp_path))
    assert folder.classes == ("daisy", "roses")
    assert [(file.path, file.label, file.num_bytes) for file in folder.files] == [
        ("daisy/deeper/3.jpg", 0, 3),
        ("roses/1.jpg", 1, 1),
        ("roses/2.jpg", 1, 2),
    ]
    assert folder.counts == {"daisy": 1, "roses": 2}
    assert folder.num_bytes == 6


def test_hidden_files_and_files_outside_of_class_folders_do_not_count(tmp_path):
    put(tmp_path / "roses" / "1.jpg")
    for name in ("LICENSE.txt", ".DS_Store", "roses/.DS_Store", ".git/config", "roses/Thumbs.db", "roses/.x/1.jpg"):
        put(tmp_path / name)
    assert [file.path for file in list_images(str(tmp_path)).files] == ["roses/1.jpg"]


def test_the_address_is_absolute_and_any_file_name_is_allowed(tmp_path, monkeypatch):
    put(tmp_path / "a" / "räksmörgås 100%#?.jpg")
    monkeypatch.chdir(tmp_path.parent)
    folder = list_images(tmp_path.name)
    assert folder.source == str(tmp_path)
    assert folder.files[0].path == "a/räksmörgås 100%#?.jpg"


def test_the_digest_changes_with_content_and_not_with_time_of_listing(tmp_path):
    put(tmp_path / "a" / "1.jpg")
    put(tmp_path / "a" / "2.jpg")
    first = list_images(str(tmp_path)).digest
    assert list_images(str(tmp_path)).digest == first
    os.utime(tmp_path / "a" / "1.jpg", ns=(1, 1))
    second = list_images(str(tmp_path)).digest
    (tmp_path / "a" / "2.jpg").rename(tmp_path / "a" / "3.jpg")
    third = list_images(str(tmp_path)).digest
    assert len({first, second, third}) == 3


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(StoreNotFound, match="one sub-folder per class"):
        list_images(str(tmp_path))


def test_a_missing_folder_is_refused_by_name(tmp_path):
    with pytest.raises(StoreNotFound, match="no/such: there is no such folder"):
        list_images(str(tmp_path / "no" / "such"))


def test_a_file_instead_of_a_folder_is_refused(tmp_path):
    put(tmp_path / "photo.jpg")
    with pytest.raises(SmaltiError, match=r"photo\.jpg"):
        list_images(str(tmp_path / "photo.jpg"))


def test_images_without_class_folders_are_refused(tmp_path):
    put(tmp_path / "1.jpg")
    with pytest.raises(SmaltiError, match=r"found 1 files \(1.jpg, ...\) and no sub-folder"):
        list_images(str(tmp_path))


def test_a_folder_one_level_too_high_is_recognized(tmp_path):
    put(tmp_path / "flower_photos" / "daisy" / "1.jpg")
    put(tmp_path / "flower_photos" / "roses" / "1.jpg")
    with pytest.raises(SmaltiError, match=r"seems to be .*/flower_photos: give that"):
        list_images(str(tmp_path))


def test_an_archive_is_not_listed_as_a_folder(tmp_path):
    with pytest.raises(SmaltiError, match=r"is an archive; give the folder.*`smalti\.spark\.fetch_archive"):
        list_images("https://example.com/flower_photos.tgz?token=1")
    assert smalti.spark.fetch_archive is fetch_archive


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission_is_refused(tmp_path):
    put(tmp_path / "a" / "1.jpg")
    (tmp_path / "a").chmod(0)
    try:
        with pytest.raises(StoreError):
            list_images(str(tmp_path))
    finally:
        (tmp_path / "a").chmod(0o700)


def test_an_address_with_an_unknown_scheme_is_refused():
    with pytest.raises(StoreError, match="unknown scheme"):
        list_images("gopher://old/photos")


def test_folders_of_two_days_are_one_inventory_with_the_classes_of_both(tmp_path):
    put(tmp_path / "day=1" / "roses" / "1.jpg", b"1")
    put(tmp_path / "day=2" / "roses" / "1.jpg", b"12")
    put(tmp_path / "day=2" / "daisy" / "2.jpg", b"123")
    days = {day: list_images(str(tmp_path / day)) for day in ("day=2", "day=1")}
    folder = join_folders(str(tmp_path), days)
    assert (folder.source, folder.classes) == (str(tmp_path), ("daisy", "roses"))
    assert [(file.path, file.label, file.num_bytes) for file in folder.files] == [
        ("day=1/roses/1.jpg", 1, 1),
        ("day=2/daisy/2.jpg", 0, 3),
        ("day=2/roses/1.jpg", 1, 2),
    ]
    assert folder.digest == join_folders(str(tmp_path), dict(reversed(days.items()))).digest
    with pytest.raises(StoreNotFound, match="no images in any of 0 folders"):
        join_folders(str(tmp_path), {})


def test_the_partitions_of_a_source_are_found_by_one_listing(tmp_path):
    put(tmp_path / "day=1" / "img" / "roses" / "1.jpg", b"1")
    put(tmp_path / "day=2" / "img" / "daisy" / "2.jpg", b"12")
    for name in ("day=2/img/LICENSE", "day=3/other/roses/1.jpg", "day=4/img/.x/1.jpg", "night=5/img/roses/1.jpg"):
        put(tmp_path / name)
    found = list_image_partitions(f"{tmp_path}/day={{p}}/img", "{p}")
    assert list(found) == ["1", "2"]
    assert found["2"].classes == ("daisy",)
    assert found == {key: list_images(f"{tmp_path}/day={key}/img") for key in ("1", "2")}
