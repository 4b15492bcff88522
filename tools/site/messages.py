"""The texts of all errors that the library raises, read from its source, for the page about troubleshooting."""

import ast
from collections.abc import Iterator
from pathlib import Path

from smalti import errors

SOURCE = Path(errors.__file__).parent
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__
}
"""Errors and warnings by name."""
_GAP = "…"


def messages() -> dict[str, list[str]]:
    """Return the texts of each class in the order of their places, with a gap for each value."""
    found: dict[str, dict[str, None]] = {name: {} for name in CLASSES}
    for path in sorted(SOURCE.rglob("*.py")):
        for name, text in _raised(ast.parse(path.read_text())):
            found[name][text] = None
    return {name: list(texts) for name, texts in found.items()}


def _raised(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield class and text of every error that is created, and of every warning, with a text of its own."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        names = [each.id for each in (node.func, *node.args[1:2]) if isinstance(each, ast.Name)]
        is_warning = isinstance(node.func, ast.Attribute) and node.func.attr == "warn"
        name = names[0] if names else ""
        text = _text_of(node.args[0])
        if name in CLASSES and is_warning == issubclass(CLASSES[name], Warning) and _is_telling(text):
            yield name, " ".join(str(text).split())


def _is_telling(text: str | None) -> bool:
    """Return whether a text has more than values."""
    return text is not None and len(text.replace(_GAP, "").strip()) > 8


def _text_of(node: ast.expr) -> str | None:
    """Return the text of a literal or of literals put together, with gaps for values; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) or _GAP for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text_of(part) for part in (node.left, node.right)]
        return None if parts == [None, None] else "".join(part or _GAP for part in parts)
    return None
