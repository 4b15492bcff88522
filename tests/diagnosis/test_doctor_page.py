"""docs/doctor.md: its programs run, and its table has every check."""

import re
from pathlib import Path

import pytest

import smalti
from smalti.diagnosis import State
from tests.shard_sets import write_set

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/doctor.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_program_of_the_page_runs(number, s3_server, s3_bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"s3://{s3_bucket}/flowers"
    write_set(url, 40, storage_options={"endpoint_url": s3_server})
    names = {"smalti": smalti, "State": State, "url": url, "endpoint": s3_server}
    exec(BLOCKS[number], names)
    if "found" in names:
        assert names["found"].ok
    else:
        assert names["speeds"].samples == 40


def test_the_table_has_every_check():
    listed = {name for row in re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)}
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src/smalti/diagnosis").glob("*.py"))
    pattern = r'(?:(?:Finding|finding_of)\(\s*"([a-z ]+)")|(?:\("([a-z ]+)", (?:check_|partial|look|room))'
    made = {name for names in re.findall(pattern, sources) for name in names if name}
    assert made == listed
