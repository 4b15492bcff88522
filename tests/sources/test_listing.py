"""The listing of a source: links are followed, and every entry is listed, or left out and named."""

import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from smalti.errors import SourceWarning, StoreAuthError, StoreError
from smalti.sources import listing
from smalti.sources.listing import HIDDEN, LeftOut, list_source
from smalti.storage import ObjectInfo, open_store
from tests.seeds import seed_of


def is_hidden(name):
    return name.startswith(".")


def listed(root):
    objects, left_out = list_source(open_store(root), is_hidden)
    return [item.key for item in objects], left_out.to_dict()


def put(path, data=b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def listen(path):
    """Make a socket of this name, as a server leaves it; `bind` takes only short paths."""
    here = Path.cwd()
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(here)


def test_links_to_files_and_folders_are_followed(tmp_path):
    put(tmp_path / "out" / "roses" / "deep" / "1.jpg", b"12")
    put(tmp_path / "out" / "2.jpg")
    put(tmp_path / "in" / "daisy" / "3.jpg")
    (tmp_path / "in" / "roses").symlink_to(tmp_path / "out" / "roses")
    (tmp_path / "in" / "daisy" / "2.jpg").symlink_to("../../out/2.jpg")
    assert listed(tmp_path / "in") == (["daisy/2.jpg", "daisy/3.jpg", "roses/deep/1.jpg"], {})
    assert list_source(open_store(tmp_path / "in"), is_hidden)[0][2].num_bytes == 2


def test_a_folder_that_two_links_lead_to_is_listed_under_both_names(tmp_path):
    put(tmp_path / "out" / "1.jpg")
    put(tmp_path / "in" / "3.jpg")
    for name in ("a", "b"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "out")
    assert listed(tmp_path / "in")[0] == ["3.jpg", "a/1.jpg", "b/1.jpg"]


def test_a_folder_that_contains_itself_through_links_is_left_out_where_it_repeats(tmp_path):
    put(tmp_path / "in" / "a" / "1.jpg")
    put(tmp_path / "other" / "2.jpg")
    (tmp_path / "in" / "a" / "again").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "b").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "in" / "a")
    keys, left_out = listed(tmp_path / "in")
    assert keys == ["a/1.jpg", "b/2.jpg", "b/back/1.jpg"]
    assert left_out == {"links to a folder that contains them": {"files": 2, "names": ["b/back/again", "a/again"]}}


def test_links_among_a_few_folders_end_in_an_error_and_not_in_endless_paths(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "MAX_NESTED_LINKS", 200)
    for number in range(12):
        folder = tmp_path / f"level{number}"
        folder.mkdir()
        for name in ("a", "b"):
            (folder / name).symlink_to(tmp_path / f"level{number + 1}")
    (tmp_path / "level12").mkdir()
    with pytest.raises(
        StoreError, match="more than 200 symbolic links to folders lie in folders that other links lead to, such as"
    ):
        listed(tmp_path / "level0")


def test_each_odd_entry_is_left_out_and_named(tmp_path):
    put(tmp_path / "a" / "1.jpg")
    (tmp_path / "a" / "itself").symlink_to("itself")
    (tmp_path / "gone").symlink_to("/no/such/folder")
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    listen(tmp_path / "a" / "socket")
    put(tmp_path / "a" / "back\\slash.jpg")
    put(tmp_path / "b\\c" / "1.jpg")
    put(Path(os.fsdecode(os.fsencode(tmp_path) + b"/a/\xfe\n.jpg")))
    put(tmp_path / "a" / ".hidden")
    put(tmp_path / ".git" / "config")
    put(tmp_path / "a" / "new\nline.jpg")
    long = tmp_path / "/".join(["l" * 250] * 4)
    put(long / ("n" * 100))
    keys, left_out = listed(tmp_path)
    assert keys == ["a/1.jpg", "a/new\nline.jpg"]
    assert {reason: sorted(facts["names"]) for reason, facts in left_out.items()} == {
        HIDDEN: [".git", "a/.hidden"],
        "links that lead nowhere": ["a/itself", "gone"],
        "pipes, sockets or devices": ["a/pipe.jpg", "a/socket"],
        "with a backslash in its name": ["a/back\\slash.jpg", "b\\c"],
        "with a name that is not UTF-8": ["a/\\udcfe\\n.jpg"],
        "with a path longer than 1024 bytes": ["l" * 197 + "..."],
    }


def test_keys_of_other_stores_that_cannot_be_read_are_left_out(monkeypatch):
    store = open_store("memory://listing-of-odd-keys")
    odd = [ObjectInfo(key, 1, "") for key in ("a/1", "a//2", "a/b\\c", "a/../3", "a/.x/4", "k" * 1025)]
    monkeypatch.setattr(store, "list", lambda: iter(odd))
    objects, left_out = list_source(store, is_hidden)
    assert [item.key for item in objects] == ["a/1"]
    assert left_out.counts == {
        HIDDEN: 2,  # `..` begins with a dot
        "with a backslash in its name": 1,
        "with a name that is not allowed": 1,
        "with a path longer than 1024 bytes": 1,
    }


@pytest.fixture
def forbidden():
    """Return a folder `root` in which this process, without the rights of root, may not list `root/a/b`."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        put(root / "a" / "1.jpg")
        put(root / "a" / "b" / "2.jpg")
        root.chmod(0o755)
        (root / "a" / "b").chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield root
        finally:
            os.seteuid(user)
            (root / "a" / "b").chmod(0o700)


def test_a_folder_that_may_not_be_listed_is_an_error_that_names_it(forbidden):
    with pytest.raises(StoreAuthError, match=r"no permission to list .*/a/b, so that its files would be missing"):
        listed(forbidden)


def test_a_missing_folder_has_no_files(tmp_path):
    assert listed(tmp_path / "no" / "such") == ([], {})


def test_only_unexpected_files_are_warned_of():
    left_out = LeftOut()
    left_out.add(HIDDEN, ".DS_Store")
    left_out.warn("photos")
    for number in range(5):
        left_out.add("links that lead nowhere", f"{number}.jpg")
    with pytest.warns(
        SourceWarning, match=r"^photos: left out: 5 links that lead nowhere \(0.jpg, 1.jpg, 2.jpg, ...\)$"
    ):
        left_out.warn("photos")


NAMES = ["a", "b", "c", ".h", "d e", "f\ng", "ü", "-n", "x\\y", os.fsdecode(b"\xff")]


def grow(root, draw):
    """Fill a folder with folders, files, pipes, and links among them."""
    folders = [root]
    for _ in range(draw.randrange(3, 25)):
        folder = draw.choice(folders)
        path = folder / f"{draw.choice(NAMES)}{draw.randrange(3)}"
        if os.path.lexists(path):
            continue
        kind = draw.randrange(8)
        if kind < 3:
            path.mkdir()
            folders.append(path)
        elif kind < 5:
            path.write_bytes(b"x")
        elif kind == 5:
            os.mkfifo(path)
        elif kind == 6:
            path.symlink_to(draw.choice([*folders, root.parent / "beside", root.parent / "beside" / "deep"]))
        else:
            path.symlink_to(draw.choice(["nowhere", folder / "a0", root / "a" / "b0"]))


def by_find(root, *test):
    """Return what `find -L` finds below a folder, without hidden entries and names that no store takes."""
    run = subprocess.run(
        ["find", "-L", root, "-mindepth", "1", "-name", ".*", "-prune", "-o", *test, "-printf", "%P\\0"],
        capture_output=True, check=False,
    )  # fmt: skip
    names = [os.fsdecode(name) for name in run.stdout.split(b"\0")[:-1]]
    return sorted(name for name in names if "\\" not in name and "\udcff" not in name)


@pytest.mark.skipif(shutil.which("find") is None, reason="compares with find(1)")
@pytest.mark.search
@pytest.mark.parametrize("number", range(40))
def test_hostile_trees_are_listed_as_find_lists_them(tmp_path, number):
    draw = random.Random(seed_of(number))
    (tmp_path / "in").mkdir()
    put(tmp_path / "beside" / "deep" / "z.jpg")
    (tmp_path / "beside" / "up").symlink_to(tmp_path / "in")
    grow(tmp_path / "in", draw)
    objects, left_out = list_source(open_store(tmp_path / "in"), is_hidden)
    assert [item.key for item in objects] == by_find(tmp_path / "in", "-type", "f")
    expected = Counter({
        "links that lead nowhere": len(by_find(tmp_path / "in", "-type", "l")),
        "pipes, sockets or devices": len(by_find(tmp_path / "in", "-type", "p")),
    })  # fmt: skip
    assert {reason: left_out.counts.get(reason, 0) for reason in expected} == dict(expected)
