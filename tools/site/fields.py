"""The fields of a dataclass in one table, as the arguments of a function; those of a base class where it is inherited.

An extension of griffe, which reads the library for mkdocstrings: it completes docstrings with a section `Args`.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from griffe import Attribute, Class, Decorator, ExprCall, ExprKeyword, ExprName, Extension, Module

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Warns|Examples?):$", re.MULTILINE)
_CHECKED = "Annotated["
_DATACLASS = ExprCall(ExprName("dataclasses.dataclass"), [ExprKeyword("kw_only", "True")])


class Fields(Extension):
    """The extension, to be named in mkdocs.yml."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Complete the docstrings of a package's classes; runs before griffe makes constructors of dataclasses."""
        kinds = [kind for kind in _classes(pkg) if kind.docstring]
        tables = {kind.path: table for kind in kinds if (table := _table(kind))}
        plain = _Plain(pkg)
        for kind in kinds:
            _as_properties(kind)
            if kind.path in tables:
                _describe(kind, tables[kind.path])
                for field in _fields(kind):
                    field.annotation = plain.of(field.annotation) if _is_configuration(kind) else field.annotation
                    field.value = None if str(field.value) == "field()" else field.value  # it has no default
                    field.docstring = None  # so that it is not a section of its own
            elif "__init__" not in kind.members and "Args:\n" not in _text(kind):
                _inherit(kind)


def _as_properties(kind: Class) -> None:
    """Show attributes that subclasses may replace by the type of their value, without how it is found."""
    for member in kind.members.values():
        if isinstance(member, Attribute) and str(member.value).startswith("Replaceable("):
            member.annotation, member.value = getattr(member.annotation, "slice", member.annotation), None


def _classes(scope: Module | Class) -> Iterator[Class]:
    for member in list(scope.members.values()):
        if member.is_alias:
            continue
        if isinstance(member, Class):
            if _is_configuration(member):
                member.decorators.append(Decorator(_DATACLASS, lineno=None, endlineno=None))
            yield member
        if isinstance(member, Module | Class):
            yield from _classes(member)


def _text(described: Class | Attribute) -> str:
    return described.docstring.value if described.docstring else ""


def _is_configuration(kind: Class) -> bool:
    """Return whether a class is one of pydantic's dataclasses, as smalti.torch.train makes them."""
    return any(str(each.value) == "configuration" for each in kind.decorators)


def _is_dataclass(kind: Class) -> bool:
    return any(re.match(r"(dataclasses\.)?dataclass\b", str(each.value)) for each in kind.decorators)


def _fields(kind: Class) -> list[Attribute]:
    """Return the public fields that a dataclass declares."""
    return [
        member
        for member in kind.members.values()
        if isinstance(member, Attribute)
        and member.annotation
        and not member.name.startswith("_")
        and "property" not in member.labels
        and ("instance-attribute" in member.labels or "class-attribute" not in member.labels)
        and "init=False" not in str(member.value)
    ]


def _table(kind: Class) -> dict[str, str]:
    """Return the descriptions of all fields of a dataclass by their names."""
    if not _is_dataclass(kind):
        return {}
    family = [*reversed([base for base in _bases(kind) if _is_dataclass(base)]), kind]
    return {field.name: _text(field) for base in family for field in _fields(base)}


def _bases(kind: Class) -> list[Class]:
    try:
        return kind.mro()
    except ValueError:  # a class of a package that was not read
        return []


def _describe(kind: Class, table: dict[str, str]) -> None:
    """Give a dataclass its fields as arguments."""
    rows = [f"    {name}: " + description.replace("\n", "\n        ") for name, description in table.items()]
    _insert(kind, "\n".join(["Args:", *rows]))


def _inherit(kind: Class) -> None:
    """Give a class with the constructor of a base class what that says after its first sentence: its arguments."""
    for base in _bases(kind):
        if "Args:\n" in _text(base):
            _insert(kind, _text(base).partition("\n\n")[2])
            return


def _insert(kind: Class, added: str) -> None:
    """Put a text before the first section of a class's docstring."""
    text = _text(kind)
    first = _SECTION.search(text)
    start = first.start() if first else len(text)
    kind.docstring.value = f"{text[:start].rstrip()}\n\n{added}\n\n{text[start:]}"  # type: ignore[union-attr]


class _Plain(ast.NodeTransformer):
    """Types without what pydantic checks: `int` for `Annotated[int, Field(ge=0)]`, and for a name of such a type."""

    def __init__(self, pkg: Module) -> None:
        checked = pkg["torch.train.values"].members if pkg.path == "smalti" else {}
        self._named = {
            name: str(member.value)
            for name, member in checked.items()
            if isinstance(member, Attribute) and str(member.value).startswith(_CHECKED)
        }

    def of(self, annotation: Any) -> Any:
        """Return an annotation, as text if it had checks."""
        text = str(annotation)
        if _CHECKED not in text and not set(re.findall(r"\w+", text)) & set(self._named):
            return annotation
        return ast.unparse(self.visit(ast.parse(text, mode="eval")))

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        return self.visit(ast.parse(self._named[node.id], mode="eval").body) if node.id in self._named else node
