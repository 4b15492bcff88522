"""docs/cache.md: its examples run."""

import re
from pathlib import Path

from smalti import CacheOptions, MDSWriter, StreamingDataset
from tests.stores import MemoryStore

PAGE = (Path(__file__).parents[2] / "docs" / "cache.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_examples_of_the_page_run(tmp_path):
    store = MemoryStore()
    with MDSWriter(columns={"id": "int"}, out=store) as writer:
        for number in range(600):
            writer.write({"id": number})
    names = {
        "store": store,
        "folder": str(tmp_path),
        "StreamingDataset": StreamingDataset,
        "CacheOptions": CacheOptions,
    }
    assert len(EXAMPLES) == 2
    for example in EXAMPLES:
        text = example.replace('"s3://bucket/set"', "store").replace('"/nvme/cache"', "folder")
        exec(text.replace("1_234_567", "567"), names)
    assert {int(number) for batch in names["dataset"].batches() for number in batch["id"]} == set(range(600))
    assert names["sample"] == {"id": 567}
