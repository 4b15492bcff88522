"""`preview`: the page is one file of bounded size, and nothing of a data set is markup or code in it."""

import json
import re
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from smalti import preview
from smalti.errors import SchemaError, StoreError
from smalti.inspection.preview import spread_rows
from smalti.inspection.reading import VersionRows
from smalti.writer import MDSWriter
from tests.shard_sets import write_set
from tests.typed_sets import write_typed_set

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>'\"&"


class Tags(HTMLParser):
    """The elements and attributes of a page, and the rows in its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.data: list[str] = []
        self.feed(text)
        self.rows = json.loads(re.search(r"id=rows>(.*?)</script>", text, re.DOTALL)[1])

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.found)


def page_of(root, tmp_path, **options):
    made = preview(root, tmp_path / "page.html", **options)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert made.num_bytes == len(text.encode())
    return made, text, Tags(text)


def picture(width: int, height: int, kind: str = "JPEG") -> bytes:
    out = BytesIO()
    Image.new("RGB", (width, height), (width, height, 0)).save(out, kind)
    return out.getvalue()


def test_hostile_names_texts_and_classes_are_text(tmp_path):
    columns = {"text": "str", HOSTILE: "str", "class": "str", "j": "json", "image": "jpeg"}
    with MDSWriter(out=str(tmp_path / "set"), columns=columns) as out:
        for number in range(6):
            values = {"text": f"{HOSTILE}{number}", HOSTILE: HOSTILE, "class": HOSTILE, "j": {HOSTILE: [HOSTILE]}}
            out.write({**values, "image": picture(8, 8)})
    _, text, tags = page_of(tmp_path / "set", tmp_path)
    assert tags.count("script") == 2  # the rows, and the page's own
    assert tags.count("img") == 0  # images are made by the script
    assert HOSTILE not in text
    row = dict(zip(tags.rows["columns"], tags.rows["rows"][0]["cells"], strict=True))
    assert (row["text"], row[HOSTILE]) == (f"{HOSTILE}0", HOSTILE)
    assert not any(name.startswith("on") for _, attributes in tags.found for name in attributes)


def test_a_page_needs_no_network_and_its_policy_allows_none(tmp_path):
    write_set(tmp_path / "set", 5)
    _, text, tags = page_of(tmp_path / "set", tmp_path)
    assert not [value for _, attributes in tags.found for name, value in attributes.items() if name in ("src", "href")]
    (policy,) = [attributes["content"] for _, attributes in tags.found if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    assert "url(" not in text
    assert "@import" not in text


def test_images_are_small_and_those_that_do_not_decode_are_named(tmp_path):
    columns = {"image": "jpeg", "raw": "pil", "label": "int"}
    with MDSWriter(out=str(tmp_path / "set"), columns=columns) as out:
        for number in range(4):
            whole = picture(900, 600)
            data = whole[:-300] + b"\xff\xd9" if number == 2 else whole
            out.write({"image": data, "raw": Image.new("L", (30, 20)), "label": number % 2})
    _, _, tags = page_of(tmp_path / "set", tmp_path)
    cells = [dict(zip(tags.rows["columns"], row["cells"], strict=True)) for row in tags.rows["rows"]]
    assert tags.rows["columns"][tags.rows["image"]] == "image"
    assert [cell["image"].get("fault", False) for cell in cells] == [False, False, True, False]
    assert cells[0]["image"]["src"].startswith("data:image/webp;base64,")
    assert cells[0]["image"]["text"].startswith("jpeg 900x600")
    assert cells[0]["raw"]["text"].startswith("raw l 30x20")
    assert [tags.rows["columns"][at] for at in tags.rows["captions"]] == ["label"]
    assert list(tags.rows["classes"].values()) == [["0", "1"]]


def test_rows_that_do_not_fit_are_left_out_and_counted(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"text": "str"}) as out:
        for number in range(100):
            out.write({"text": f"{number} " + "x" * 2_000_000 if number == 5 else f"{number} " + "y" * 1500})
    made, text, tags = page_of(tmp_path / "set", tmp_path, max_bytes="64kb")
    assert made.num_bytes <= 65_536
    assert 10 < made.rows < 100
    assert made.left_out == 100 - made.rows
    assert f"{made.left_out} more rows did not fit" in text
    longest = max(len(row["cells"][0]) for row in tags.rows["rows"])
    assert longest < 2100
    with pytest.raises(SchemaError, match="64 KiB"):
        preview(tmp_path / "set", tmp_path / "page.html", max_bytes=1000)


def test_a_page_that_is_too_large_without_rows_is_refused_and_wide_sets_show_some_columns(tmp_path):
    columns = {f"{number:03} {'long name ' * 120}": "int" for number in range(100)}
    with MDSWriter(out=str(tmp_path / "set"), columns=columns) as out:
        for number in range(3):
            out.write(dict.fromkeys(columns, number))
    with pytest.raises(SchemaError, match="choose fewer `columns`"):
        preview(tmp_path / "set", tmp_path / "page.html", max_bytes="64kb")
    _, text, tags = page_of(tmp_path / "set", tmp_path)
    assert (len(tags.rows["columns"]), "40 more columns are not shown" in text) == (60, True)


def test_sets_with_nulls_without_images_and_without_rows_have_pages(tmp_path):
    made, _, tags = page_of(write_typed_set(tmp_path / "typed"), tmp_path, rows=10)
    assert (made.rows, made.looked_at, made.num_rows, tags.rows["image"]) == (10, 40, 40, None)
    names = [dict(zip(tags.rows["columns"], row["cells"], strict=True))["name"] for row in tags.rows["rows"]]
    assert names == [None if row["row"] % 3 == 0 else f"n{row['row']}" for row in tags.rows["rows"]]
    with MDSWriter(out=str(tmp_path / "empty"), columns={"n": "int"}):
        pass
    made, _, tags = page_of(tmp_path / "empty", tmp_path)
    assert (made.rows, tags.rows["rows"]) == (0, [])


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    write_set(tmp_path / "set", 5)
    with pytest.raises(StoreError, match="cannot write"):
        preview(tmp_path / "set", tmp_path / "missing" / "page.html")
    (tmp_path / "page.html").write_text("before")
    preview(tmp_path / "set", tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "set"]
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_of_compressed_sets_the_first_rows_of_random_shards_are_shown(tmp_path):
    """Shards of about 30 rows: 60 rows are the first three of 20 shards, 900 rows take 30 shards."""
    write_set(tmp_path, 3000, compression="zstd", size_limit=2000)
    rows = VersionRows(tmp_path, version=None, tag=None, split=None)
    begins = rows.shard_ends - rows.set.shard_sizes
    few = spread_rows(rows, 60, seed=1)
    assert len(set(few.tolist())) == len(few) == 60
    places = few - begins[np.searchsorted(rows.shard_ends, few, side="right")]
    assert places.tolist() == [0, 1, 2] * 20
    assert len(set(spread_rows(rows, 900, seed=1).tolist())) == 900
    assert spread_rows(rows, 3000, seed=1).tolist() == list(range(3000))
