"""The code of docs/export.md and docs/sources.md runs, and gives what its comments say."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("export.md", "100 1\n"),
        (
            "sources.md",
            "{'born': 'int32', 'born__is_null': 'uint8', 'id': 'int64', 'note': 'str', 'zip': 'str'}\n",
        ),
    ],
)
def test_the_code_of_the_page_runs_twice(tmp_path, monkeypatch, capsys, page, said):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL):
            exec(compile(block, page, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == 2 * said
