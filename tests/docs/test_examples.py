"""Every class and function of the API reference has an example, and each example gives what it shows.

In the examples `s3://bucket` and `/data` are a folder of the test with the sets `photos`, `users` and `more-users`, a
trained model in `runs/7` and `rows.parquet`; the folder `photos` has images. Names of the reference need no import.
"""

import ast
import doctest
import inspect
import re
import shutil
from collections import defaultdict
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import smalti
from assets.drawing import draw_flower
from smalti.torch.train import TrainConfig, train
from smalti_dagster import DataSet
from smalti_dagster.declaration import Automation, Image, Notify, Prepare, Source, Split, Train, Watch
from tests.docs.reference import ENTRIES, documented
from tests.spark.own_session import own_session

MODULES = {"np": np, "torch": torch, "smalti": smalti, "shutil": shutil, "Path": Path}
EXEMPT = {
    "smalti.compat.petastorm.make_reader": "it always raises an error",
    "smalti.conversion.SourceOptions": "`convert` makes it for a source",
    "smalti.ledger.PassStart": "StreamingDataLoader makes it for a ledger",
    "smalti.ledger.SkippedSample": "StreamingDataLoader makes it for a ledger",
    "smalti.spark.mds.source.MDSDataSource": "Spark makes it, as in the example of `register`",
    "smalti.storage.FsspecStore": "`open_store` makes it",
    "smalti.torch.train.CheckpointFolder": "a part of launchers, behind `Context.save` and `latest`",
    "smalti.torch.train.Loaded": "a part of launchers, as above",
    "smalti.torch.train.EventTail": "a part of launchers, behind `on_event`",
    "smalti.writer.VersionWriter": "the base of MDSWriter, which shows its methods",
    "smalti.writer.WriterOptions": "MDSWriter makes it of its arguments",
    "smalti.writer.ShardUploader": "a part of writers",
    "smalti.writer.UploadOptions": "a part of writers",
    "smalti.writer.NoSamples": "a part of writers",
}
"""By name: why neither it nor what takes or returns it has an example."""

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def is_described(thing):
    """Return whether an object is a class or a function, not a number or the name of a type."""
    return isinstance(thing, type) or inspect.isroutine(thing)


def example_of(thing):
    """Return the section of examples of a docstring, or an empty text."""
    text = inspect.cleandoc(thing.__doc__ or "") if is_described(thing) else ""
    return inspect.cleandoc(text.partition("\nExamples:\n")[2])


EXAMPLES = {name: text for path, name, _ in ENTRIES if (text := example_of(documented(path)))}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def parts_of(text):
    """Return the code of an example: lines with prompts, or blocks."""
    return BLOCK.findall(text) or [part.source for part in doctest.DocTestParser().get_examples(text)]


def used_in(text):
    """Return the names that an example uses."""
    nodes = [node for part in parts_of(text) for node in ast.walk(ast.parse(part))]
    return {getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes}


def returned_by(thing):
    """Return the words of the types of what an object returns: a function, or the members and fields of a class."""
    if inspect.isroutine(thing):
        return set(re.findall(r"\w+", inspect.formatannotation(getattr(thing, "__annotations__", {}).get("return"))))
    members = [getattr(each, "fget", each) for base in thing.__mro__ for each in vars(base).values()]
    fields = [inspect.formatannotation(each) for each in vars(thing).get("__annotations__", {}).values()]
    functions = [each for each in members if inspect.isroutine(each)]
    return set(re.findall(r"\w+", " ".join(fields))).union(*map(returned_by, functions))


def shown():
    """Return the names that examples show: their own, those that they use, and the types of what all these return."""
    things = defaultdict(list)
    for path, name, _ in ENTRIES:
        things[name.rpartition(".")[2]] += [documented(path)] * is_described(documented(path))
    new = {name.rpartition(".")[2] for name in EXAMPLES}.union(*(used_in(text) for text in EXAMPLES.values()))
    names = set()
    while new := (new & set(things)) - names:
        names |= new
        new = set().union(*(returned_by(thing) for name in new for thing in things[name]))
    return names


def test_every_class_and_function_is_in_an_example():
    names = shown()
    missing = [
        name
        for path, name, _ in ENTRIES
        if is_described(thing := documented(path))
        and name not in EXEMPT
        and name.rpartition(".")[2] not in names
        and not inspect.isabstract(thing)
        and not getattr(thing, "_is_protocol", False)
        and not (isinstance(thing, type) and issubclass(thing, Exception))
    ]
    assert missing == []
    assert [name for name in EXEMPT if name.rpartition(".")[2] in names] == []


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder with what the examples read."""
    folder = tmp_path_factory.mktemp("examples")
    for part, count in (("train", 16), ("validation", 4)):
        for name in ("cat", "dog"):
            for number in range(count):
                data = draw_flower("daisy" if name == "cat" else "roses", number=number, size=(64, 48))
                places = [folder / "split" / part / name] + [folder / "photos" / name] * (
                    number < 6 and part == "train"
                )
                for place in places:
                    place.mkdir(parents=True, exist_ok=True)
                    (place / f"{number}.jpg").write_bytes(data)
    smalti.convert(folder / "split", folder / "bucket/photos", partition_by="split", processes=1)
    for name, numbers in (("users", range(10)), ("users", range(10, 15)), ("more-users", range(15, 20))):
        columns = {"user_id": "int", "text": "str"}
        mode = "append" if numbers.start == 10 else "create"
        with smalti.MDSWriter(out=folder / "bucket" / name, columns=columns, mode=mode) as writer:
            for number in numbers:
                writer.write({"user_id": number, "text": f"user {number}"})
    rows = pa.table({"id": range(10), "label": [0, 1] * 5})
    pq.write_table(rows, folder / "bucket/rows.parquet")
    (folder / "more.csv").write_text("a,b\n1,x\n2,y\n3,z\n")
    return folder


@pytest.fixture(scope="module")
def trained(prepared):
    """Return the folder of a run, which kept a ledger."""
    config = TrainConfig(
        data=str(prepared / "bucket/photos"), run_dir=str(prepared / "runs/7"), epochs=1, batch_size=16,
        task_options={"image_size": 32}, log_samples=True,
    )  # fmt: skip
    train(config)
    return Path(config.run_dir)


@pytest.fixture(scope="module")
def spark():
    with own_session() as session:
        yield session


def of_dagster():
    """Return the names that the examples of `smalti_dagster` assume: two data sets, and assets of the reader's own."""
    declared = {
        "prepare": Prepare(image=Image(size=96)),
        "train": Train(),
        "automation": Automation(watch=Watch(), notify=Notify(email=["team@example.com"])),
    }
    photos = DataSet(name="photos", source=Source(folder="s3://bucket/photos"), **declared)
    sales = DataSet(name="sales", source=Source(table="sales"))
    own = {name: dg.asset(name=name)(lambda: None) for name in ("downloaded", "approved", "reviewed")}
    return {"dg": dg, "Source": Source, "Split": Split, "photos": photos, "sales": sales, **own}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_shows(name, prepared, tmp_path, monkeypatch, request):
    text = EXAMPLES[name]
    names = MODULES | {each.rpartition(".")[2]: documented(path) for path, each, _ in reversed(ENTRIES)}
    names[name.rpartition(".")[2]] = documented(next(path for path, each, _ in ENTRIES if each == name))
    names |= of_dagster() if name.startswith("smalti_dagster") else {}
    if "spark" in re.findall(r"\w+", text):
        names["spark"] = request.getfixturevalue("spark")
    if "runs/7" in text and "s3://" in text:
        text = text.replace("s3://bucket/runs/7", str(request.getfixturevalue("trained")))
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"s3://bucket|(?<![\w.])/data\b", f"{tmp_path}/bucket", text)
    run(name, text, names)


def run(name, text, names):
    """Run an example, and compare what it prints if it has prompts."""
    if block := re.search(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        names[name.rpartition(".")[2]].resolve_from_yaml(yaml.safe_dump(yaml.safe_load(block[1])["attributes"]))
        return
    if BLOCK.search(text):
        for block in BLOCK.findall(text):
            exec(compile(block, name, "exec"), names)
        return
    printed = []
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert example.examples
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=printed.append)
    assert not failed, "".join(printed)
