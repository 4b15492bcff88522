"""The documentation site: it builds without a warning, has every public name, and its search finds what is asked."""

import html
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smalti import errors
from tests.docs.reference import ENTRIES
from tests.docs.test_links import anchors_of, text_of
from tests.storage.servers.process import fail_or_skip

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
QUESTIONS = {
    "delete samples": "deletion/",
    "aws credentials": "s3/",
    "checkpoint": "resume/",
    "resume on other machines": "resume/",
    "petastorm": "petastorm/",
    "convert images": "convert/",
    "mixture of datasets": "mixtures/",
    "cache size": "concepts/cache/",
    "dagster": "dagster/",
    "spark": "spark/",
    "split": "concepts/versions/",
    "slurm": "slurm/",
}
"""Questions that are typed into the search, and the page that each is to find first."""
MESSAGES = {
    "ArgumentError": "`batch_size` is needed, on the loader or on the dataset: samples per rank and step.",
    "BadImageError": "photo.jpg header declares 40000x40000 = 1600000000 pixels, above the limit of 178956970: a "
    "decompression bomb, or a scan that should be scaled down first",
    "CacheLimitError": "`cache_limit` is 1,000 bytes, and shard.00000.mds alone takes 67,108,864: give at least that; "
    "better, what a few batches need and what is fetched at the same time.",
    "CheckpointError": "the checkpoint was not written within 30 s after the life ended by an exception, and nothing "
    "of it is kept. Raise `grace_seconds`.",
    "ChecksumMismatch": "shard.00003.mds: checksum c0d29a60eefb93ad expected, found 1b25a7a1c70b1f04; the upload is "
    "incomplete or the file was changed. Fetch it again, or run the writer again.",
    "CommitUnknown": "/data/set: it is unknown whether version 4 was published (write id 7f3a), because the store "
    "stopped answering. Nothing was removed; publish again with the same write id",
    "MissingDependency": "smalti.errors.MissingDependency: StreamingDataLoader needs the package torch, which is not "
    "installed: pip install 'smalti[torch]'",
    "SampleIndexError": "sample 200 of 100: expected a number from 0 to 99; indexing the dataset counts negative "
    "numbers from the end.",
    "SchemaError": "a null cannot be stored; fill it or drop the row before writing",
    "SharedDatasetWarning": "two StreamingDataLoaders read /data/flowers through one dataset at the same time. A "
    "dataset has one sequence of epochs, so each loader gets every other epoch.",
    "SkipLimitExceeded": "101 samples of 1200 could not be read in this iteration, and `max_skipped` allows 100.",
    "StoreAuthError": "the storage option `role_arn` names arn:aws:iam::1:role/x, and there are no credentials to "
    "assume it with; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "StoreTimeout": "/data/set: no answer for 60 s; check the store and the network, and open the set again.",
    "TrainingError": "the gradient of step 17 is not finite (learning rate 0.1); this rank's samples were 3, 4.",
    "WorldMismatch": "`batch_size` 10 cannot be divided over 4 ranks; it counts the samples of a step over all ranks: "
    "choose a multiple.",
}
"""Messages as they are pasted into the search, by class."""

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


@pytest.fixture(scope="module")
def first_results(site):
    """The place that each question and message finds first, by the search that the site has in a browser."""
    if not shutil.which("node"):
        fail_or_skip("node is not installed")
    [worker] = (site / "assets/javascripts/workers").glob("search.*.min.js")
    queries = [*QUESTIONS, *MESSAGES.values()]
    done = subprocess.run(
        ["node", REPOSITORY / "tests/docs/search.js", worker, site / "search/search_index.json"],
        input=json.dumps(queries), capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {query: results[0][0] for query, results in zip(queries, json.loads(done.stdout), strict=True)}


def test_a_question_finds_its_page_first(first_results):
    assert {query: first_results[query].partition("#")[0] for query in QUESTIONS} == QUESTIONS


def test_a_pasted_message_finds_itself_first(site, first_results):
    page = (site / "troubleshooting/index.html").read_text()
    for name, message in MESSAGES.items():
        place = first_results[message]
        assert re.fullmatch(rf"troubleshooting/#{name.lower()}-\d+", place), (message, place)
        assert f'id="{place.partition("#")[2]}"' in page


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


@pytest.mark.parametrize(
    ("page", "row"),
    [
        pytest.param("reading/StreamingDataset", ["split", "str | None", "None"], id="of a base class"),
        pytest.param("reading/CacheOptions", ["download_retry", "int", "2"], id="a field"),
        pytest.param("training/TrainConfig", ["batch_size", "int", "32"], id="a checked field"),
        pytest.param("versions/rollback", ["version", "int", "required"], id="of a function"),
    ],
)
def test_an_argument_has_its_type_description_and_default_in_one_row(site, page, row):
    text = (site / "api" / page / "index.html").read_text()
    rows = [re.findall(r"<td>(.*?)</td>", each, re.DOTALL) for each in re.findall(r"<tr.*?</tr>", text, re.DOTALL)]
    found = [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells] for cells in rows]
    [cells] = [cells for cells in found if len(cells) == 4 and [*cells[:2], cells[3]] == row]
    assert cells[2]


def test_a_replaceable_attribute_is_shown_by_the_type_of_its_value(site):
    page = (site / "api/petastorm/Loaders/index.html").read_text()
    assert 'id="smalti.compat.petastorm.pytorch.DataLoader.batch_size"' in page
    assert "Replaceable" not in re.sub(r"<[^>]+>", "", page)


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
