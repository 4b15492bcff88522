"""The code of docs/convert.md runs."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PAGE = (Path(__file__).parents[2] / "docs" / "convert.md").read_text()


def test_every_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"id": list(range(1000))}), tmp_path / "rows" / "a.parquet", row_group_size=500)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/convert.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == "1 1000\n"
