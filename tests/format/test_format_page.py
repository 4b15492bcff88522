"""The shard that docs/format.md spells out is the one that the writer writes."""

import re
from pathlib import Path

from smalti import MDSWriter

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def spelled_out() -> bytes:
    block = re.search(r"```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block is not None
    data = b""
    for line in block[1].splitlines():
        data += line.encode("ascii") if line.startswith("{") else bytes.fromhex(re.split(r" {3,}", line)[0])
    return data


def test_the_shard_on_the_page_is_what_the_writer_writes(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={"id": "int", "text": "str"}) as writer:
        writer.write({"id": 0, "text": "héllo"})
        writer.write({"id": -1, "text": ""})
    (shard,) = tmp_path.rglob("*.mds")
    assert shard.read_bytes() == spelled_out()
    assert len(spelled_out()) == 240
