"""Hooks of the documentation site.

Links from pages to files of the repository become links to its web pages. The marks `<!-- messages: CLASS -->` of the
page about troubleshooting become the texts of all errors of a class. The marks `<!-- results: NAME -->` become the
table of a chart, made from benchmarks/results. The mark `<!-- file: NAME -->` becomes a page of the repository's root,
without its title.

The search of the theme adds up, for each entry of its index, the words of a query that the entry has. Words of titles
count a thousand times as much as others, and entries of pages up to five times as much as those of sections. A question
is to find the page that it is the title of, and a message that is pasted, the message. So the index has

1. the short title of a page, as in the navigation, before the title that stands on the page,
2. an entry for each message, with the text of the message as its title: a list of hundreds of messages would have some
   words of every query. Long ones count less, because they have words of many queries.
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
_BOOSTS = {
    "adr/": 0.3, "api/": 0.3, "notebooks/": 0.5, "concepts/versions.md": 0.75, "dagster-reference.md": 0.7,
    "from-": 0.8, "install.md": 0.6, "sources.md": 0.7, "spark.md": 1.6,
}  # fmt: skip
"""Weights of pages in the search, by the start of their path; other pages have 1."""
_NODE_KEY = "e=e+s+o.id"
"""The place where lunr adds an edge to the key of a node: label and number, without a mark before the next edge. Some
nodes of words with digits have equal keys then, and a query with such a word finds nothing at all."""
_titles: dict[str, str] = {}
"""The titles of pages in the navigation, by address."""


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page with its marks replaced, and links that leave `docs/` as addresses of the repository."""
    folder = Path(page.file.abs_src_path).parent
    _titles[page.url] = page.title
    for start, boost in _BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}

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
    """Give pages their short titles in the index of the search, and add an entry for each message."""
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    for entry in index["docs"]:
        if (title := _titles.get(entry["location"], entry["title"])) != entry["title"]:
            entry["title"], entry["text"] = escape(title), f"{entry['title']} {entry['text']}"
    index["docs"] += [
        {
            "location": f"troubleshooting/#{_anchor(name, number)}",
            "title": escape(text, quote=False),
            "text": name,
            "boost": round(0.8 * min(1.0, 12 / len(text.split())) ** 0.7, 3),
        }
        for name, texts in _messages().items()
        for number, text in enumerate(texts)
    ]
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
    for worker in Path(config.site_dir, "assets", "javascripts", "workers").glob("search.*.min.js"):
        script = worker.read_text(encoding="utf-8")
        if script.count(_NODE_KEY) != 1:
            _log.warning("the script of the search has changed: see whether lunr's keys of nodes are unique now")
        worker.write_text(script.replace(_NODE_KEY, f'{_NODE_KEY}+","'), encoding="utf-8")


def _anchor(name: str, number: int) -> str:
    return f"{name.lower()}-{number + 1}"


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
    items = "\n".join(f'<li id="{_anchor(name, number)}">{escape(text)}</li>' for number, text in enumerate(texts))
    count = f"All {len(texts)} messages" if len(texts) > 1 else "The message"
    return f"<details data-search-exclude><summary>{count}</summary>\n<ul>\n{items}\n</ul>\n</details>"
