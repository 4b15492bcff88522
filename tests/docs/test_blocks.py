"""Every page with code belongs to a test that runs it; the short pieces that no other test runs are run here.

A page that is tested in this folder needs no entry: the module names it, as "docs/text.md". Add an entry to `TESTED`
for a test elsewhere.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest
from PIL import Image

import smalti
import smalti.compat.streaming
from smalti import CacheOptions, MDSWriter, OrderOptions, StreamingDataLoader, StreamingDataset
from smalti.ledger import check_ledger
from smalti.world import World
from tests.shard_sets import write_set
from tests.stores import MemoryStore, StoreContract

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(python|console|sh|bash|yaml)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
TESTED = {
    "README.md": "tests/rules/test_readme.py",
    "docs/cache.md": "tests/cache/test_page.py",
    "docs/cli.md": "tests/cli/test_page.py",
    "docs/convert.md": "tests/conversion/test_docs.py",
    "docs/copying.md": "tests/exchange/test_page.py",
    "docs/dagster.md": "tests/code_location/test_declaration.py",
    "docs/deletion.md": "tests/writer/test_deletion_page.py",
    "docs/doctor.md": "tests/diagnosis/test_doctor_page.py",
    "docs/encodings.md": "tests/format/encodings/test_custom.py",
    "docs/existing-project.md": "tests/packages/test_distribution.py",
    "docs/export.md": "tests/exporting/test_pages.py",
    "docs/frameworks.md": "tests/frameworks/page.py",
    "docs/inference.md": "tests/inference/test_export.py",
    "docs/inspection.md": "tests/inspection/test_inspection_page.py",
    "docs/install.md": "tests/packages/test_distribution.py",
    "docs/mixtures.md": "tests/dataset/test_mixture_page.py",
    "docs/mosaicml.md": "tests/compat/streaming/test_mosaicml_page.py",
    "docs/order.md": "tests/order/test_order_page.py",
    "docs/petastorm.md": "tests/compat/test_converter.py",
    "docs/reading.md": "tests/torch/test_reading_page.py",
    "docs/resharding.md": "tests/spark/test_pages.py",
    "docs/scale.md": "tests/benchmarks/test_fleet.py",
    "docs/sources.md": "tests/exporting/test_pages.py",
    "docs/spark.md": "tests/spark/test_pages.py",
    "docs/training.md": "tests/torch/train/launch/test_documentation.py",
}
"""By page with blocks of code: the module that runs them, where it is outside of tests/docs."""
OTHERS = ("test_links.py", "test_site.py", "test_charts.py")
"""Modules of this folder that name pages and run no code of theirs."""


def blocks_of(page):
    """Return (language, text) of each block of a page that is a program, commands or a configuration."""
    return [(kind, text) for _, kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]


PAGES = sorted(
    page
    for page in (path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    if blocks_of(page)
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_with_code_belongs_to_a_test(page):
    here = [path for path in (ROOT / "tests/docs").glob("test_*.py") if path.name not in OTHERS]
    modules = [ROOT / TESTED[page]] if page in TESTED else here
    named = re.compile(rf"(docs/|\"){re.escape(page.removeprefix('docs/'))}\b")
    naming = [path for path in modules if path.is_file() and named.search(path.read_text(encoding="utf-8"))]
    assert naming, f"write a test that runs the blocks of {page}, in tests/docs or with an entry in TESTED"


def test_every_entry_is_of_a_page_with_code():
    assert sorted(set(TESTED) - set(PAGES)) == []


@pytest.mark.parametrize(
    "page", ["README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
)
def test_a_sentence_constructs_a_class_with_arguments_that_it_has(page):
    """A sentence such as "`StreamingDataset(local="set")` reads it" is not run by the test of the blocks."""
    sentences = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    unknown = {
        f"{call.func.id}({keyword.arg}=)"
        for call in calls_in(sentences)
        if isinstance(kind := getattr(smalti, call.func.id, None), type)
        for keyword in call.keywords
        if keyword.arg is not None and keyword.arg not in inspect.signature(kind).parameters
    }
    assert unknown == set()


def calls_in(sentences):
    """Yield the calls of a plain name in pieces of code between backquotes."""
    for code in re.findall(r"`([^`\n]+)`", sentences):
        try:
            tree = ast.parse(code)
        except SyntaxError:  # a path, a command or a part of an expression
            continue
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))


# ------------------------------------------------------- pieces of code that assume names of the reader's program


@pytest.fixture
def names(tmp_path, monkeypatch):
    """A folder to work in, and what the pieces assume: a set of 40 samples, a loader and a state of it."""
    monkeypatch.chdir(tmp_path)
    dataset = StreamingDataset(remote=str(write_set("set", 40)), shuffle=True)
    return {
        "CacheOptions": CacheOptions,
        "OrderOptions": OrderOptions,
        "StreamingDataset": StreamingDataset,
        "StreamingDataLoader": StreamingDataLoader,
        "url": "set",
        "dataset": dataset,
        "loader": StreamingDataLoader(dataset, batch_size=8),
        "world": World(),
    }


def run(page, names, *, marks=("",)):
    """Run the Python blocks of a page that hold one of the marks; buckets are folders."""
    blocks = [text for kind, text in blocks_of(page) if kind == "python" and any(mark in text for mark in marks)]
    assert blocks
    for text in blocks:
        exec(compile(text.replace("s3://bucket", "bucket"), page, "exec"), names)
    return names


def test_home_converts_a_folder_and_reads_it(names):
    for number in range(3):
        photo = Path("photos", "cat", f"{number}.jpg")
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(photo)
    assert set(run("docs/index.md", names)["batch"]["path"]) == {"cat/0.jpg", "cat/1.jpg", "cat/2.jpg"}


def test_a_loader_keeps_a_ledger_by_either_piece_of_the_page(names):
    names = run("docs/ledger.md", names)
    assert names["life"] == 1
    assert {int(number) for batch in names["loader"] for number in batch["id"]} == set(range(40))
    assert check_ledger("runs/7/ledger").ok


def test_a_state_resumes_where_the_page_says(names):
    run("docs/resume.md", names, marks=["for batch in loader"])
    assert len(list(names["loader"])) == 2, "the state of a whole epoch begins the next one"
    mosaic = smalti.compat.streaming.StreamingDataset(local="set", shuffle=True, batch_size=32)
    names["state"] = mosaic.state_dict(0, from_beginning=True)
    run("docs/resume.md", names, marks=["smalti.compat.streaming"])


def test_a_cursor_is_saved_and_loaded(names):
    next(iter(names["loader"]))
    assert run("docs/concepts/cursor.md", names)["state"]["sample_in_epoch"] == 8


@pytest.mark.parametrize("page", ["docs/versions.md", "docs/concepts/versions.md"])
def test_every_call_on_versions_works(names, page):
    for number in range(5):
        with MDSWriter(out="versions", columns={"user_id": "int"}, mode="append") as writer:
            writer.write({"user_id": 15 + number})
    run(page, names | {"url": "versions"})
    described = [(each.operation, each.rows) for each in smalti.history("versions")[5:]]
    assert described[0] == ("rollback", 3)
    if page == "docs/versions.md":
        assert described[1:] == [("compact", 3), ("delete", 2)]


def test_the_contract_of_stores_is_used_as_shown(names):
    assert issubclass(
        run("docs/storage.md", {"pytest": pytest, "MyStore": MemoryStore}, marks=["TestMyStore"])["TestMyStore"],
        StoreContract,
    )
