"""notebooks/*.ipynb: each runs from top to bottom, and prints what is stored in it."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_links import links_of, text_of

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
PROGRAM = REPOSITORY / "tools" / "notebooks.py"
SECONDS = 500
"""Longest time of a notebook; on an idle machine each takes less than a minute."""
MAX_BYTES = 300_000

VARIES = {
    r"\d+\.\d+(?:\.\d+)*(?:e[+-]?\d+)?": "NUMBER",  # losses, accuracies, learning rates, versions of packages
    r"\b[0-9a-f]{12,}\b": "HEX",  # digests, which depend on the encoder of images
}
"""All that may differ between the stored outputs and new ones; whole numbers and names may not."""

NIGHTLY = {"flowers", "own_loop", "petastorm"}
"""Their steps run in the default suite, too: by README.md, first-hour.md, training.md, own-loop.md and the pages on
Petastorm."""
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


@pytest.mark.torch
@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.nightly] if path.stem in NIGHTLY else [], id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_prints_what_is_stored_in_it(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--into", str(tmp_path), str(path)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shown(tmp_path / path.name) == shown(path), f"run `make notebooks ARGS={path.relative_to(REPOSITORY)}`"


@each_notebook
def test_a_notebook_is_stored_whole_small_and_without_traces_of_a_machine(path):
    text = path.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "executed once, in order"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    assert len(text) < MAX_BYTES
    places = r"/(?:tmp|home|root|work|Users|private)/"
    assert [output for output in outputs if re.search(places, json.dumps(output.get("text", "")))] == []


@each_notebook
def test_a_notebook_links_to_the_pages_that_have_the_details(path):
    assert sum("://" not in link for link in links_of(text_of(path))) >= 3


def test_another_count_is_a_difference_and_another_loss_is_none():
    assert masked("36 steps, loss 1.25, digest 1f9fdfd6163e37f0") == masked(
        "36 steps, loss 0.9, digest 4ad6779b821a4f96"
    )
    assert masked("36 steps, loss 1.25") != masked("35 steps, loss 1.25")
    assert masked("version 1") != masked("version 2")


def test_a_page_of_the_site_shows_texts_code_and_outputs(tmp_path):
    path = tmp_path / "small.ipynb"
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["180 samples\n"]},
        {"output_type": "execute_result", "data": {"image/jpeg": "/9j/4A==", "text/plain": ["<Image>"]}},
        {"output_type": "execute_result", "data": {"text/plain": ["0.5"]}},
    ]
    text = "# Small\n\nRead [Spark](../docs/spark.md#a), [it](../examples/a.py), [o](o.ipynb)."
    cells = [
        {"cell_type": "markdown", "source": text.splitlines(keepends=True)},
        {"cell_type": "code", "source": ["print(count)\n", "mean"], "outputs": outputs},
    ]
    path.write_text(json.dumps({"cells": cells}))
    page = runpy.run_path(str(REPOSITORY / "tools" / "site" / "notebook_pages.py"))["page"](path)
    assert page.startswith("# Small\n")
    assert "[Spark](../spark.md#a), [it](../../examples/a.py), [o](o.md)." in page
    assert "```python\nprint(count)\nmean\n```" in page
    assert "180 samples\n```" in page
    assert '<img src="data:image/jpeg;base64,/9j/4A==" alt="' in page
    assert "<Image>" not in page, "the text that stands for a picture is not shown beside it"
    assert "0.5\n```" in page


def shown(path):
    """Return the code of each cell and what it shows; of pictures only that there is one."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    return [("".join(cell["source"]), [seen(output) for output in cell["outputs"]]) for cell in cells]


def seen(output):
    if "text" in output:
        return masked("".join(output["text"]))
    return sorted(output["data"]), masked("".join(output["data"].get("text/plain", "")))


def masked(text):
    for pattern, name in VARIES.items():
        text = re.sub(pattern, name, text)
    return text
