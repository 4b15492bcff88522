"""Pages of the API reference, from the lists in docs/api/*/index.md.

Each entry of a list is a line, `::: PATH as NAME`: where an object is defined, and the name by which users import it.
What is shown of a class may follow: `, without members` or `, with inherited members`.
Entries without an empty line between them share a page. Its title is the line before them if that ends with a colon,
otherwise the name of the first entry. On the site a list is a table of its names with what each is, in one sentence.
Pages of the documentation that a docstring names by their files become links.
"""

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LISTS = Path(__file__).resolve().parents[2] / "docs" / "api"
_GROUP = re.compile(r"^(?:(?P<title>.+):\n)?(?P<entries>(?:^::: .+\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^::: (\S+) as ([\w.]+)(, with.+)?$", re.MULTILINE)
_SHOWN = {
    "": {},
    ", without members": {"members": False},
    ", with inherited members": {"inherited_members": True},
}
_FILE = re.compile(r"(?:<code>)?\bdocs/(?P<path>[\w/-]+\.md)(?P<anchor>#[\w-]+)?(?:</code>)?")


@dataclass(frozen=True)
class ReferencePage:
    """A page of the reference: its title, and (path, name, what is shown) of the objects on it."""

    title: str
    entries: list[tuple[str, str, str]]
    has_heading: bool
    """True if the title is not the name of the first object."""

    @property
    def file(self) -> str:
        """The name of the file beside the list."""
        return self.title.replace(" ", "-") + ".md"

    def markdown(self) -> str:
        """Return the page with instructions for mkdocstrings."""
        parts = [f"# {self.title}\n"] if self.has_heading else []
        for path, name, shown in self.entries:
            options = {"heading": name, "toc_label": _short(name), "heading_level": 2 if parts else 1}
            parts.append(f"::: {path}\n    options: {json.dumps(options | _SHOWN[shown])}\n")
        return "\n".join(parts)


def pages_of(text: str) -> list[ReferencePage]:
    """Return the pages that a list declares."""
    return [_page(group) for group in _GROUP.finditer(text)]


def _page(group: "re.Match[str]") -> ReferencePage:
    entries = _ENTRY.findall(group["entries"])
    return ReferencePage(group["title"] or _short(entries[0][1]), entries, has_heading=bool(group["title"]))


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def on_config(config: Any) -> Any:
    """Put the pages below their list in the navigation."""
    _add_pages(config.nav)
    return config


def _add_pages(nav: Any) -> None:
    for item in nav:
        for title, value in item.items() if isinstance(item, dict) else ():
            if isinstance(value, list):
                _add_pages(value)
            elif re.fullmatch(r"api/\w+/index\.md", value):
                folder = posixpath.dirname(value)
                item[title] = [value, *({page.title: f"{folder}/{page.file}"} for page in _declared(value))]


def _declared(src_uri: str) -> list[ReferencePage]:
    return pages_of((LISTS.parent / src_uri).read_text(encoding="utf-8"))


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Return the files of the site with the pages of the reference."""
    from mkdocs.structure.files import File

    for path in sorted(LISTS.glob("*/index.md")):
        folder = path.parent.relative_to(LISTS.parent).as_posix()
        for page in _declared(f"{folder}/index.md"):
            file = File.generated(config, f"{folder}/{page.file}", content=page.markdown())
            file.abs_src_path = str(path.with_name(page.file))  # Not there; where relative links begin.
            files.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return a list as a table."""
    if not re.fullmatch(r"api/\w+/index\.md", page.file.src_uri):
        return markdown
    handler = config.plugins["mkdocstrings"].handlers.get_handler("python")
    introduction = markdown[: _GROUP.search(markdown).start()]  # type: ignore[union-attr]  # every list has entries
    rows = [row for each in pages_of(markdown) for row in _rows(each, handler)]
    return "\n".join([introduction, "| Name | |", "|---|---|", *rows, ""])


def _rows(page: ReferencePage, handler: Any) -> Iterator[str]:
    for path, name, _ in page.entries:
        docstring = handler.collect(path, handler.get_options({})).docstring
        text = " ".join(docstring.value.partition("\n\n")[0].split()) if docstring else ""
        sentence = re.match(r".*?\.(?=\s|$)|.*", text)[0]  # type: ignore[index]  # matches every text
        # The anchor is that of the description, which was on this page before it got one of its own.
        yield f'| <a id="{path}"></a>[`{name}`][{path}] | {sentence.replace("|", "&#124;")} |'


def on_page_content(html: str, *, page: Any, files: Any, **_: Any) -> str:
    """Return the page with links in place of the files of pages that docstrings name."""
    if not page.file.src_uri.startswith("api/"):
        return html

    def linked(match: "re.Match[str]") -> str:
        target = files.get_file_from_path(match["path"])
        if target is None or target.page is None:
            return match[0]
        address = target.url_relative_to(page.file) + (match["anchor"] or "")
        return f'<a href="{address}">{target.page.title}</a>'

    return _FILE.sub(linked, html)
