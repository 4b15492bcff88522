"""The examples of docstrings in the API reference, and what they assume.

In the examples `s3://bucket` and `/data` are a folder of the test with the sets `photos`, `users` and `more-users`, and
`rows.parquet`; the folder `photos` has images. Names of the reference need no import.
"""

import ast
import doctest
import inspect
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import smalti
from assets.drawing import draw_flower
from tests.docs.reference import ENTRIES, documented

MODULES = {"np": np, "torch": torch, "smalti": smalti, "shutil": shutil, "Path": Path}


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


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder with what the examples read."""
    folder, splits = tmp_path_factory.mktemp("examples"), tmp_path_factory.mktemp("splits")
    for name, kind in (("cat", "daisy"), ("dog", "roses")):
        for number in range(20):
            place = splits / ("train" if number < 16 else "validation") / name / f"{number}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(draw_flower(kind, number=number, size=(64, 48)))
        for number in range(6):
            (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(splits / "train" / name / f"{number}.jpg", folder / "photos" / name)
    smalti.convert(splits, folder / "bucket/photos", partition_by="split", processes=1)
    for name, numbers in (("users", range(10)), ("users", range(10, 15)), ("more-users", range(15, 20))):
        columns = {"user_id": "int", "text": "str"}
        mode = "append" if numbers.start == 10 else "create"
        with smalti.MDSWriter(out=folder / "bucket" / name, columns=columns, mode=mode) as writer:
            for number in numbers:
                writer.write({"user_id": number, "text": f"user {number}"})
    pq.write_table(pa.table({"id": range(10), "label": [0, 1] * 5}), folder / "bucket/rows.parquet")
    (folder / "more.csv").write_text("a,b\n1,x\n2,y\n3,z\n")
    return folder


@pytest.fixture
def workplace(prepared, tmp_path, monkeypatch):
    """Yield a copy of that folder, the current one; torch takes one thread, as other tests use the cores."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


def run(name, text, workplace, **further):
    """Run an example, and compare what it prints if it has prompts."""
    names = MODULES | {each.rpartition(".")[2]: documented(path) for path, each, _ in reversed(ENTRIES)}
    names[name.rpartition(".")[2]] = documented(next(path for path, each, _ in ENTRIES if each == name))
    names |= further
    text = re.sub(r"s3://bucket|(?<![\w.])/data\b", f"{workplace}/bucket", text)
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
