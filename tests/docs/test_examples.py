"""Every class and function of the API reference has an example, and each example gives what it shows.

Those that need Spark run in test_examples_spark.py.
"""

import inspect
import re
from collections import defaultdict

import dagster as dg
import pytest

from smalti.torch.train import TrainConfig, train
from smalti_dagster import DataSet
from smalti_dagster.declaration import Automation, Image, Notify, Prepare, Source, Split, Train, Watch
from tests.docs.examples import EXAMPLES, is_described, prepared, run, used_in, workplace  # noqa: F401 - fixtures
from tests.docs.reference import ENTRIES, documented

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
def trained(prepared, tmp_path_factory):  # noqa: F811
    """Return the folder of a run, which kept a ledger."""
    config = TrainConfig(
        data=str(prepared / "bucket/photos"), run_dir=str(tmp_path_factory.mktemp("runs") / "7"), epochs=1,
        batch_size=16, task_options={"image_size": 32}, log_samples=True,
    )  # fmt: skip
    train(config)
    return config.run_dir


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


@pytest.mark.parametrize("name", [name for name, text in EXAMPLES.items() if "spark" not in used_in(text)])
def test_an_example_gives_what_it_shows(name, workplace, request):  # noqa: F811
    text = EXAMPLES[name]
    if "s3://bucket/runs/7" in text:
        text = text.replace("s3://bucket/runs/7", request.getfixturevalue("trained"))
    run(name, text, workplace, **(of_dagster() if name.startswith("smalti_dagster") else {}))
