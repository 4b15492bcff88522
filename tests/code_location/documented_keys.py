"""The keys of metadata that docs/dagster-reference.md lists, by stage."""

import re

from pipelines.home import REPOSITORY

_ROW = re.compile(r"^\| (?P<stages>[a-z, ]+) \| (?P<keys>`[^|]+`) \|", re.MULTILINE)


def documented_keys(stage: str) -> set[str]:
    """Return the keys of the table of a stage's metadata."""
    page = (REPOSITORY / "docs" / "dagster-reference.md").read_text()
    section = page.split("## Every key of metadata")[1].split("\n## ")[0]
    rows = [row for row in _ROW.finditer(section) if stage in row["stages"].split(", ")]
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row["keys"])}
