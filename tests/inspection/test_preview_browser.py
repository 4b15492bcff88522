"""A preview page in headless Chromium: rows are shown, hostile text stays text, nothing is fetched or logged."""

import re
import shutil
import subprocess

import pytest

from smalti import preview
from smalti.writer import MDSWriter
from tests.inspection.test_preview import HOSTILE, picture

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


def rendered(page, folder, *options: str) -> tuple[str, str]:
    """Return the document after its script ran, and what the browser logged."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'chromium'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=5000", *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    return done.stdout, "\n".join(re.findall(r".*CONSOLE.*", done.stderr))


def test_rows_are_shown_and_hostile_text_runs_nothing(tmp_path):
    columns = {"image": "jpeg", "text": "str", "class": "str", HOSTILE: "str"}
    with MDSWriter(out=str(tmp_path / "set"), columns=columns) as out:
        for number in range(130):
            values = {"image": picture(40 + number, 30), "text": f"{HOSTILE} {number}", "class": HOSTILE}
            out.write({**values, HOSTILE: HOSTILE})
    preview(tmp_path / "set", tmp_path / "page.html", rows=130)
    dom, logged = rendered(tmp_path / "page.html", tmp_path)
    assert logged == ""
    assert "<title>set</title>" in dom
    assert "130 of 130 rows, page 1 of 3" in dom
    assert len(re.findall(r'<button class="card">', dom)) == 60
    assert len(re.findall(r'<img src="data:image/webp', dom)) == 60
    assert '<img src="x"' not in dom
    assert "&lt;/script&gt;&lt;script&gt;document.title" in dom


def test_a_set_without_images_is_a_table_and_an_empty_one_says_so(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"text": "str", "n": "int"}) as out:
        for number in range(30):
            out.write({"text": f"text {number} " + "x" * 100_000, "n": number})
    preview(tmp_path / "set", tmp_path / "page.html")
    dom, logged = rendered(tmp_path / "page.html", tmp_path)
    assert (logged, "30 of 30 rows, page 1 of 2" in dom) == ("", True)
    assert len(re.findall(r'<tr class="row"', dom)) == 25
    with MDSWriter(out=str(tmp_path / "empty"), columns={"n": "int"}):
        pass
    preview(tmp_path / "empty", tmp_path / "empty.html")
    dom, logged = rendered(tmp_path / "empty.html", tmp_path)
    assert (logged, "There are no rows." in dom) == ("", True)


def test_rows_are_filtered_turned_over_and_shown_whole(tmp_path):
    """The page's own policy forbids further scripts, so the steps run in a copy of the page without it."""
    with MDSWriter(out=str(tmp_path / "set"), columns={"image": "jpeg", "class": "str", "n": "int"}) as out:
        for number in range(130):
            out.write({"image": picture(40, 30), "class": f"class {number % 2}", "n": number})
    preview(tmp_path / "set", tmp_path / "page.html", rows=130)
    text = re.sub(r"<meta http-equiv=[^>]*>", "", (tmp_path / "page.html").read_text(encoding="utf-8"))
    steps = """<script>
      const note = (name) => document.body.dataset[name] = at("where").textContent;
      at("on").click(); note("second");
      const choice = document.querySelector("select[data-column]");
      choice.value = "1"; choice.dispatchEvent(new Event("change")); note("chosen");
      at("find").value = "JPEG 129"; at("find").dispatchEvent(new Event("input")); note("found");
      document.querySelector(".card").click();
      document.body.dataset.whole = at("detail-body").textContent;
      document.body.dataset.open = at("detail").open;
      at("close").click(); at("view").click();
      document.body.dataset.lines = document.querySelectorAll("tr.row").length;
    </script></body>"""
    (tmp_path / "steps.html").write_text(text.replace("</body>", steps), encoding="utf-8")
    dom, logged = rendered(tmp_path / "steps.html", tmp_path)
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<body[^>]*>", dom)[0]))
    assert logged == ""
    assert found["second"] == "130 of 130 rows, page 2 of 3"
    assert found["chosen"] == "65 of 130 rows, page 1 of 2"
    assert found["found"] == "1 of 130 rows, page 1 of 1"
    assert (found["open"], found["lines"]) == ("true", "1")
    assert "class 1" in found["whole"]
    assert found["whole"].endswith("129")
