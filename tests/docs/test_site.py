"""The documentation site: it builds without a warning, and has every public name and every error message."""

import html
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from smalti import errors
from tests.docs.reference import ENTRIES
from tests.docs.test_links import anchors_of, text_of

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = REPOSITORY / "tools" / "site"
PACKAGES = (
    "smalti", "smalti.conversion", "smalti.diagnosis", "smalti.exchange", "smalti.exporting", "smalti.images",
    "smalti.inference", "smalti.inspection", "smalti.ledger", "smalti.spark", "smalti.torch", "smalti.torch.train",
    "smalti.torch.tuning", "smalti.compat.petastorm", "smalti_dagster",
)  # fmt: skip
"""Packages whose names users import."""
ERRORS = sorted(
    name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == "smalti.errors"
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, which was built strictly: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def indexed(site):
    """The text of all sections that the search finds, without spaces and marks of HTML."""
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    return "\n".join(plain(f"{each['title']} {each['text']}") for each in found)


def plain(text):
    return re.sub(r"\s+", "", html.unescape(re.sub(r"</?[a-z]+[^<>]*>", "", text)))


def test_every_error_class_has_an_anchor(site):
    page = (site / "troubleshooting" / "index.html").read_text()
    assert [name for name in ERRORS if f'id="{name.lower()}"' not in page] == []


def test_the_search_finds_every_error_message(site, indexed):
    listing = subprocess.run(
        [sys.executable, "-c", "import json, messages; print(json.dumps(messages.messages()))"],
        cwd=TOOLS, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    texts = json.loads(listing.stdout)
    assert len(texts["StoreTimeout"]) > 5
    assert "`cache_limit` is … bytes, and … alone takes …" in texts["CacheLimitError"][0]
    assert [text for each in texts.values() for text in each if plain(html.escape(text)) not in indexed] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_api_reference(site, package):
    headings = {
        heading.rpartition(".")[2]
        for page in (site / "api").rglob("index.html")
        for heading in re.findall(r'class="doc doc-heading">\s*<code[^>]*></code>\s*([\w.]+)', page.read_text())
    }
    names = [name for name in importlib.import_module(package).__all__ if name != "__version__"]
    assert [name for name in names if name not in headings] == []


def test_a_class_has_the_public_members_of_its_private_bases(site):
    """Descriptions of inherited members are there, or on the page of the base class."""
    pages = "".join(page.read_text() for page in (site / "api").rglob("index.html"))
    paths = [path for path, _, shown in ENTRIES if shown != ", without members"]
    missing, num_inherited = [], 0
    for path in paths:
        module, _, name = path.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        for base in kind.__mro__[1:] if isinstance(kind, type) else ():
            is_private = base.__module__.startswith("smalti.") and f"{base.__module__}.{base.__name__}" not in paths
            members = [each for each in vars(base) if is_private and has_docstring(base, each)]
            num_inherited += len(members)
            missing += [f"{path}.{each}" for each in members if f'id="{path}.{each}"' not in pages]
    assert missing == []
    assert num_inherited > 10


def has_docstring(kind, name):
    """Return whether a name of a class is a public method or property with a description."""
    value = vars(kind)[name]
    return (
        not name.startswith("_")
        and bool(getattr(value, "__doc__", None))
        and (callable(value) or hasattr(value, "fget"))
    )


def test_anchors_are_those_of_github(site):
    """So that one link works on the site and in the repository."""
    differing = {}
    for page in sorted((REPOSITORY / "docs").rglob("*.md")):
        path = page.relative_to(REPOSITORY / "docs").with_suffix("")
        built = site / (path.parent if path.name == "index" else path) / "index.html"
        ids = set(re.findall(r'\bid="([^"]+)"', built.read_text()))
        if missing := {each for each in anchors_of(text_of(page)) if each not in ids}:
            differing[str(path)] = missing
    assert differing == {}


def test_a_page_loads_nothing_from_another_machine(site):
    for name in ("index.html", "api/reading/StreamingDataset/index.html", "troubleshooting/index.html"):
        page = (site / name).read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)', page)
        loaded += re.findall(r'<link[^>]*\brel="(?:stylesheet|preconnect|icon)"[^>]*\shref="([^"]+)', page)
        assert loaded
        assert [each for each in loaded if each.startswith(("http:", "https:", "//"))] == []


def test_the_drawings_are_those_that_the_program_draws():
    drawn = subprocess.run(
        [sys.executable, "-c", "import json, drawings; print(json.dumps([(p.name, s) for p, s in drawings.files()]))"],
        cwd=TOOLS, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    assert {name: (REPOSITORY / "docs/images" / name).read_text() for name, _ in json.loads(drawn.stdout)} == dict(
        json.loads(drawn.stdout)
    )
