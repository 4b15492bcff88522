"""A digest of Spark's analysed plan: DataFrames with equal digests and equal sources have the same rows.

Only plans that are known to give the same rows from the same files have a digest: those of relational operators and
Spark's own deterministic expressions. Functions of the user are opaque, and data from memory is not compared.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Excluded: operators that keep the first of several rows, whose order may vary (Deduplicate, Window, Limit, Sample).
_OPERATORS = frozenset(
    f"org.apache.spark.sql.catalyst.plans.logical.{name}"
    for name in (
        "Aggregate", "Distinct", "Except", "Expand", "Filter", "Generate", "Intersect", "Join", "Project",
        "Repartition", "RepartitionByExpression", "ResolvedHint", "Sort", "SubqueryAlias", "Union", "Unpivot", "View",
    )
)  # fmt: skip
_SOURCES = frozenset(
    f"org.apache.spark.sql.execution.datasources.{name}" for name in ("LogicalRelation", "v2.DataSourceV2Relation")
)
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_NONDETERMINISTIC = re.compile(
    r"UDF|UDAF|UDTF|Udf|Invoke|NewInstance|Lambda|Current|^Now$|LocalTimestamp|Rand|Uuid|Shuffle|Subquery|Exists|"
    r"ListQuery|First|Last|AnyValue|Mode$|Collect|Sample|Input|Partition[Ii][Dd]|MonotonicallyIncreasingID|Outer|"
    r"Java|Scala|Variable|Session|Secret|HyperLogLog|Sketch"
)
_EXPRESSION_ID = re.compile(r"#\d+")


def plan_digest(nodes: Sequence[Mapping[str, Any]], text: str, *, about: Mapping[str, Any]) -> str | None:
    """Return a digest that two plans share if they are equal apart from the numbers that Spark gave their columns.

    Args:
        nodes: The plan as parsed from `TreeNode.toJSON`.
        text: The plan as Spark's tree of text, which has details of casts that the JSON lacks.
        about: Everything else that decides the rows: session settings, Spark's version.

    Returns:
        Hex digits; None for a plan with an operator or expression that may give other rows the next time.
    """
    if not all(map(_is_known, _classes(nodes))) or not all(map(_is_plain, _literals(nodes))):
        return None
    numbers: dict[str, int] = {}
    plan = _numbered(list(nodes), numbers)
    facts = [plan, _EXPRESSION_ID.sub("#", text), dict(about)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _objects(item)


def _classes(nodes: Any) -> Iterator[str]:
    return (str(item["class"]) for item in _objects(nodes) if "class" in item)


def _literals(nodes: Any) -> Iterator[Mapping[str, Any]]:
    return (item for item in _objects(nodes) if item.get("class") == f"{_EXPRESSIONS}Literal")


def _is_known(name: str) -> bool:
    if name in _OPERATORS or name in _SOURCES:
        return True
    return name.startswith(_EXPRESSIONS) and not _NONDETERMINISTIC.search(name.rsplit(".", 1)[-1])


def _is_plain(literal: Mapping[str, Any]) -> bool:
    """Return whether the text of a literal is its value: that of bytes and arrays is a memory address."""
    kind = literal.get("dataType")
    return isinstance(kind, str) and kind not in ("binary", "variant", "calendarinterval")


def _numbered(value: Any, numbers: dict[str, int]) -> Any:
    """Return a plan with columns numbered in order of appearance; Spark numbers them over the whole session."""
    if isinstance(value, Mapping):
        if str(value.get("product-class", "")).endswith(".ExprId"):
            return numbers.setdefault(str(value["id"]), len(numbers))
        return {name: _numbered(item, numbers) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbered(item, numbers) for item in value]
    return value
