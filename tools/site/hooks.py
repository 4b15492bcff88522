"""Hooks of the documentation site.

Links from pages to files of the repository become links to its web pages. The marks `<!-- messages: CLASS -->` of the
page about troubleshooting become the texts of all errors of a class, so that the search finds each of them. The marks
`<!-- results: NAME -->` become the table of a chart, made from benchmarks/results.
"""

import logging
import re
import sys
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(?<=\]\()(?P<path>(?:\.\./)+[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
_MESSAGES = re.compile(r"<!-- messages: (\w+) -->")
_RESULTS = re.compile(r"<!-- results: ([\w-]+) -->")
_log = logging.getLogger("mkdocs.hooks.smalti")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page with its marks replaced, and links that leave `docs/` turned into addresses of the repository."""
    folder = Path(page.file.abs_src_path).parent

    def replaced(match: "re.Match[str]") -> str:
        target = (folder / match["path"]).resolve()
        if target.is_relative_to(REPOSITORY / "docs") or not target.is_relative_to(REPOSITORY):
            return match[0]
        if not target.exists():
            _log.warning("%s links to %s, which is not in the repository", page.file.src_path, match["path"])
        kind = "tree" if target.is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{target.relative_to(REPOSITORY)}{match['anchor'] or ''}"

    markdown = _RESULTS.sub(lambda match: _table(match[1]), markdown)
    return _MESSAGES.sub(lambda match: _list_messages(match[1]), _LINK.sub(replaced, markdown))


def _table(name: str) -> str:
    """Return the table of a chart, in Markdown."""
    sys.path[:0] = [str(REPOSITORY / "tools/site")]
    from charts import CHARTS, table

    return table(CHARTS[name])


@lru_cache(maxsize=1)
def _messages() -> dict[str, list[str]]:
    sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tools/site")]
    from messages import messages

    return messages()


def _list_messages(name: str) -> str:
    """Return a folded list of all texts of a class."""
    texts = _messages()[name]
    if not texts:
        return ""
    items = "\n".join(f"<li>{escape(text)}</li>" for text in texts)
    count = f"All {len(texts)} messages" if len(texts) > 1 else "The message"
    return f"<details><summary>{count}</summary>\n<ul>\n{items}\n</ul>\n</details>"
