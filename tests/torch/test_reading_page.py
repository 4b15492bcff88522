"""docs/reading.md: its examples run as described, and it names every argument that it is about."""

import re
from pathlib import Path

import pytest

from smalti.ledger import check_ledger
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.writer import MDSWriter

pytestmark = pytest.mark.torch

PAGE = (Path(__file__).parents[2] / "docs" / "reading.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- (\w+) -->\n```python\n(.*?)```", PAGE, flags=re.DOTALL))


def test_the_examples_of_the_page_run_as_described(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int", "image": "bytes", "label": "int"}) as writer:
        for number in range(100):
            writer.write({"id": number, "image": bytes([number]), "label": number % 3})
    names = {
        "StreamingDataset": StreamingDataset,
        "StreamingDataLoader": StreamingDataLoader,
        "url": str(tmp_path / "set"),
        "ledger": str(tmp_path / "ledger"),
    }
    assert sorted(EXAMPLES) == ["columns", "skip"]
    exec(EXAMPLES["columns"], names)
    assert list(names["sample"].items()) == [("label", 0), ("image", b"\0")]
    exec(EXAMPLES["skip"], names)
    assert len(list(names["loader"])) == 4
    assert check_ledger(tmp_path / "ledger").ok
    assert names["dataset"].stats().samples_skipped == 0
