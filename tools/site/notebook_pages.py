"""Pages of the documentation site that show notebooks/*.ipynb with their stored outputs.

A notebook becomes a page of Markdown, `notebooks/NAME.md`, so that its links are checked and the search finds its text
as on every other page.
"""

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
_PICTURES = ("image/jpeg", "image/png")
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<rest>[^)\s]*\))")


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Return the files of the site with a page for each notebook."""
    from mkdocs.structure.files import File

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        file = File.generated(config, f"notebooks/{path.stem}.md", content=page(path))
        # Not there; its folder is where relative links begin.
        file.abs_src_path = str(Path(config.docs_dir, file.src_uri))
        files.append(file)
    return files


def page(path: Path) -> str:
    """Return a notebook as a page of Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _shown(cell)]
    title, _, rest = parts[0].partition("\n")
    notice = f"This page shows a notebook with its outputs: [{path.name}](../../notebooks/{path.name})."
    return "\n\n".join([title, notice, rest.lstrip("\n"), *parts[1:]]) + "\n"


def _shown(cell: Any) -> "list[str]":
    """Return the parts of a page that show one cell."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [_LINK.sub(lambda match: _moved(match["path"]) + match["rest"], source)]
    return [f"```python\n{source}\n```", *map(_output, cell["outputs"])]


def _moved(link: str) -> str:
    """Return a link of notebooks/ as one of docs/notebooks/."""
    if link.startswith("../docs/"):
        return "../" + link.removeprefix("../docs/")
    if link.startswith("../"):
        return "../" + link
    return re.sub(r"\.ipynb$", ".md", link)


def _output(output: Any) -> str:
    data = output.get("data", {})
    for kind in _PICTURES:
        if kind in data:
            picture = "".join(data[kind]).replace("\n", "")
            return f'<img src="data:{kind};base64,{picture}" alt="The picture that the cell above shows">'
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n")
    return f"```text\n{text}\n```"
