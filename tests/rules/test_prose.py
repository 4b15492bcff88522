"""Words and openings that have made docstrings and comments hard to read stay out of the library and the root pages.

The lists are short on purpose: each entry has caused sentences that a new reader had to decode. CONTRIBUTING.md says
how to write instead.
"""

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")

WORDS = {
    r"nobody|somebody|everybody|anybody|whoever": "name the caller, process, user or writer",
    r"told|tells?": "return, report, pass, or name the data flow",
    r"believed?|believes": "validate, trust, check",
    r"go(es)? on|going on|went on": "continue, resume",
    r"has (no|a) say": "depends on",
    r"let(s|ting)? go": "release, close, unmap, evict",
    r"strangers?|stranger's": "file of another program, foreign",
    r"what (comes|becomes) of": "the result, the outcome",
    r"by the door|a door|doors": "interface, entry point",
    r"in vain": "without success, repeatedly",
    r"as (it|they|the process) lives?": "while the process runs",
    r"is at work|are at work": "run, write, read",
    r"be had": "available, readable",
    r"mend(s|ed|ing)?": "repair, correct, fix",
}
"""Regular expressions of words that hide who does what, and what to write instead."""

ANY_WORD = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)

OPENINGS = {
    r"(What|Which|Who|Whose|When|Where|How)\b": "an imperative verb for functions, a noun phrase for all others",
    r"(Nobody|Nothing|Says|Tells)\b": "the fact itself",
    r"Of\b": "the noun, as in `Seed of the order`",
}
FUNCTION_OPENINGS = {
    r"Whether\b": "`Return whether ...`",
    r"(Returns|Makes|Gives|Takes|Puts|Gets|Checks|Adds|Removes|Opens|Closes|Ends|Begins|Starts|Waits|Sets|Keeps|Finds|Raises"
    r"|Lets|Brings|Fetches|Does|Has|Goes|Leaves|Holds|Creates|Builds|Deletes|Yields|Refuses)\b": "the imperative",
}


def test_docstrings_open_with_an_imperative_verb_or_a_noun_phrase():
    assert [hit for path in sources() for hit in openings(path, path.read_text())] == []


def test_prose_uses_the_standard_terms():
    assert [hit for path in sources() for hit in words(path, prose(path.read_text()))] == []
    for name in PAGES:
        lines = enumerate((ROOT / name).read_text().splitlines(), 1)
        assert words(ROOT / name, lines) == []


def test_no_sentence_of_the_documentation_opens_with_of_or_has_a_word_of_another_craft():
    pages = sorted((ROOT / "docs").rglob("*.md"))
    assert len(pages) > 50
    lines = [(page, number, line) for page in pages for number, line in enumerate(page.read_text().splitlines(), 1)]
    assert [
        f"{page}:{number}: {line.strip()[:80]!r}"
        for page, number, line in lines
        if re.search(r"(^|[.|] |- )Of [a-z]|\b(mend(s|ed|ing)?|told)\b", line)
    ] == []


def test_every_package_says_what_it_contains():
    """In a sentence, not by its name alone."""
    packages = [path for path in sources() if path.name == "__init__.py"]
    assert [
        str(path) for path in packages if len((ast.get_docstring(ast.parse(path.read_text())) or "").split()) < 12
    ] == []


def test_the_rules_find_what_they_are_for():
    bad = '"""Who reads."""\n\ndef fetch():\n    """Fetches it."""\n    x = 1  # nobody wants it\n    return x\n'
    assert len(openings(Path("x.py"), bad)) == 2
    assert len(openings(Path("x.py"), 'SIZE = 1\n"""How large."""\n')) == 1
    assert len(words(Path("x.py"), prose(bad))) == 1


def sources():
    folders = ("src", "assets", "pipelines", "resources", "tools")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def nodes(text):
    """Return all functions and expressions of a module, which two tests look at."""
    kinds = (ast.Expr, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def openings(path, text):
    """Return the docstrings, those of attributes too, that open with a word of the lists."""
    found = [
        (node.lineno, node.value.value, OPENINGS)
        for node in nodes(text)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    found += [
        (node.lineno, ast.get_docstring(node) or "", FUNCTION_OPENINGS)
        for node in nodes(text)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not returns_a_value_as_attribute(node)
    ]
    return [
        f"{path}:{line}: {doc.splitlines()[0]!r}: write {better}"
        for line, doc, rules in found
        for pattern, better in rules.items()
        if re.match(pattern, doc)
    ]


def returns_a_value_as_attribute(node):
    return any(re.search(r"property|Replaceable|setting", ast.unparse(each)) for each in node.decorator_list)


def prose(text):
    """Return (line, text) of all docstrings, attribute docstrings and comments."""
    lines = []
    for node in nodes(text):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines += [(node.lineno + number, line) for number, line in enumerate(node.value.value.splitlines())]
    comments = tokenize.generate_tokens(io.StringIO(text).readline)
    return lines + [(token.start[0], token.string) for token in comments if token.type == tokenize.COMMENT]


def words(path, lines):
    return [
        f"{path}:{number}: {line.strip()!r}: write {better}"
        for number, line in lines
        if ANY_WORD.search(line)
        for pattern, better in WORDS.items()
        if re.search(rf"\b({pattern})\b", line, re.IGNORECASE)
    ]
