"""Links of all pages and notebooks lead to files and headings that exist; links to other sites have a known form."""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from smalti import errors

ROOT = Path(__file__).resolve().parents[2]
OWN = "https://github.com/smalti/smalti/"
"""The repository: what follows `blob/main/` or `tree/main/` is a path in it."""
HOSTS = {
    "ar5iv.labs.arxiv.org", "asyncssh.readthedocs.io", "docs.aws.amazon.com", "docs.mosaicml.com",
    "download.pytorch.org", "gcsfs.readthedocs.io", "github.com", "hal.science", "jobset.sigs.k8s.io",
    "optuna.org", "pypi.org", "pytorch.org", "s3fs.readthedocs.io", "www.contributor-covenant.org",
    "www.tensorflow.org",
}  # fmt: skip
"""Sites that pages link to. Open a link to a new one in a browser before you add its host: tests have no network."""
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", ".github/*.md", "docs/**/*.md", "notebooks/**/*.ipynb", "benchmarks/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
)
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINKS = re.compile(
    r"\]\(\s*<?(?P<inline>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)"
    r"|^\[[^\]^][^\]]*\]:\s*<?(?P<reference>[^\s>]+)>?"
    r"|<(?P<auto>https?://[^>]+)>"
    r"|\b(?:href|src)=\"(?P<html>[^\"]+)\"",
    re.MULTILINE,
)


@cache
def text_of(path):
    """Return the text of a page, or of the cells of a notebook that are no code, without blocks of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return _FENCE.sub("", text)


def links_of(text):
    """Return the targets of all links and images outside of code."""
    return [next(filter(None, match.groups())) for match in _LINKS.finditer(_SPAN.sub("`code`", text))]


def anchors_of(text):
    """Return the anchors that GitHub gives to the headings of a text; of equal headings only the first has its own."""
    headings = re.findall(r"^#{1,6} +(.*?) *#* *$", text, re.MULTILINE)
    return {slug(each) for each in headings} | set(re.findall(r"\bid=\"([^\"]+)\"", text))


def slug(heading):
    shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def fault_of(link, page):
    """Return what is wrong with a link of a page, or None."""
    if link.startswith(OWN) and link.removeprefix(OWN).startswith(("blob/main/", "tree/main/")):
        path, _, anchor = link.removeprefix(OWN)[len("blob/main/") :].partition("#")
        target = ROOT / unquote(path)
    elif re.match(r"[a-z][a-z0-9+.-]*:", link):
        scheme, _, rest = link.partition("://")
        host = rest.partition("/")[0]
        if scheme.startswith("mailto:"):
            return None
        return None if scheme == "https" and host in HOSTS else "not https of a known host"
    else:
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
    if not target.is_relative_to(ROOT):
        return "leads out of the repository"
    if not target.exists():
        return "no such file"
    if not anchor or (target.suffix not in {".md", ".ipynb"}):
        return None
    if "\n::: " in text_of(target) and "." in anchor:  # of mkdocstrings; the strict build of the site checks it
        return None
    return None if anchor in anchors_of(text_of(target)) else "no such heading"


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading_or_to_a_known_site(name):
    page = ROOT / name
    faults = {link: fault_of(link, page) for link in links_of(text_of(page))}
    assert {link: fault for link, fault in faults.items() if fault} == {}


def test_help_addresses_of_errors_lead_to_headings():
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SmaltiError)]
    faults = {kind.__name__: fault_of(kind("").help_url, ROOT / "README.md") for kind in kinds}
    assert len(kinds) > 20
    assert {name: fault for name, fault in faults.items() if fault} == {}


def test_links_are_found_in_all_their_forms_and_not_in_code():
    text = "[a](b.md#c) ![d](<e.png>) [f][1] `[g](h)`\n\n"
    text += '```text\n[i](j)\n```\n\n<https://k/> <img src="l.svg">\n[1]: m.md\n'
    assert links_of(_FENCE.sub("", text)) == ["b.md#c", "e.png", "https://k/", "l.svg", "m.md"]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("How well it shuffles", "how-well-it-shuffles"),
        ("`smalti cp`, and more: 2 stores", "smalti-cp-and-more-2-stores"),
        ("Lightning & Co.", "lightning--co"),
        ("From [Petastorm](petastorm.md)", "from-petastorm"),
        ("read_prepared", "read_prepared"),
    ],
)
def test_anchors_are_those_of_github(heading, anchor):
    assert slug(heading) == anchor


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("no-such-page.md", "no such file"),
        ("troubleshooting.md#no-such-error", "no such heading"),
        ("#no-such-heading", "no such heading"),
        ("../../outside.md", "leads out of the repository"),
        (f"{OWN}blob/main/docs/no-such-page.md", "no such file"),
        ("http://github.com/x", "not https of a known host"),
        ("https://example.com/", "not https of a known host"),
    ],
)
def test_a_broken_link_is_found(link, fault):
    assert fault_of(link, ROOT / "docs" / "faq.md") == fault
