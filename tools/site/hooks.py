"""Hooks of the documentation site.

Links from pages to files of the repository become links to its web pages. The marks `<!-- messages: CLASS -->` of the
page about troubleshooting become the texts of all errors of a class, so that the search finds each of them. The marks
`<!-- results: NAME -->` become the table of a chart, made from benchmarks/results. The mark `<!-- file: NAME -->`
becomes a page of the repository's root, without its title.
"""

import json
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
_FILE = re.compile(r"<!-- file: ([\w.]+) -->")
_RESULTS = re.compile(r"<!-- results: ([\w-]+) -->")
_log = logging.getLogger("mkdocs.hooks.smalti")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page with its marks replaced, and links that leave `docs/` as addresses of the repository."""
    folder = Path(page.file.abs_src_path).parent
    if page.file.src_uri == "troubleshooting.md":
        page.meta["search"] = {"boost": 5}  # before other pages that have the words of a message

    def replaced(match: "re.Match[str]") -> str:
        target = (folder / match["path"]).resolve()
        if target.is_relative_to(REPOSITORY / "docs") or not target.is_relative_to(REPOSITORY):
            return match[0]
        if not target.exists():
            _log.warning("%s links to %s, which is not in the repository", page.file.src_path, match["path"])
        kind = "tree" if target.is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{target.relative_to(REPOSITORY)}{match['anchor'] or ''}"

    markdown = _FILE.sub(lambda match: _root_page(match[1]), markdown)
    markdown = _RESULTS.sub(lambda match: _table(match[1]), markdown)
    return _MESSAGES.sub(lambda match: _list_messages(match[1]), _LINK.sub(replaced, markdown))


def on_post_build(*, config: Any, **_: Any) -> None:
    """Let words of titles count eight times in the search, not a thousand times.

    Otherwise a pasted error message finds all pages with one of its words in their title before the message itself.
    """
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    index["config"]["fields"]["title"]["boost"] = 8.0
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")


def _root_page(name: str) -> str:
    """Return a page of the root without its title, with links as from `docs/`."""
    _, _, text = (REPOSITORY / name).read_text(encoding="utf-8").partition("\n")
    return re.sub(r"\]\((?!https:|#|docs/)", "](../", text).replace("](docs/", "](")


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
