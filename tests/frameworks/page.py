"""The code of docs/frameworks.md, by section."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"


def run_section(heading, folder):
    """Run the code that writes the set, and the code below a heading, with paths in a folder; return its names."""
    text = PAGE.read_text().replace("/tmp/", f"{folder}/")
    begin, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    by_heading = {each.partition("\n")[0]: each for each in sections}
    names = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", begin + by_heading[heading], re.DOTALL):
        exec(compile(code, PAGE.name, "exec"), names)
    return names


def ids_of(batches):
    return [number for batch in batches for number in batch["id"].tolist()]
