"""The columns of a shard: their names, encodings and sizes, in stored order."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from smalti.errors import SchemaError
from smalti.format.encodings.encoding import Encoding
from smalti.format.encodings.registry import num_replaced, parse_encoding
from smalti.format.sizes import VERSION

MAX_COLUMNS = 100_000
"""Most columns that the entry of a shard in an index file may have."""


@dataclass(frozen=True)
class Schema:
    """Columns in stored order: code-point order of their names, unless another writer wrote the shard.

    Examples:
        >>> Schema.from_columns({"text": "str", "label": "int"}).sizes  # in the order of the names
        (8, None)
    """

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    """Bytes of every value of the column; None if values differ in length."""

    @classmethod
    def from_columns(cls, columns: Mapping[str, str], *, allow_unsafe_types: bool = False) -> "Schema":
        """Return the schema of `columns`, name to encoding; an empty one stands for a set without shards.

        Raises:
            SchemaError: An unusable or ambiguous name, or an encoding that cannot be written.
        """
        for name in columns:
            _check_name(name)
        if len(columns) > MAX_COLUMNS:
            raise SchemaError(
                f"{len(columns)} columns, and a shard has at most {MAX_COLUMNS}; store numbers of one kind as one "
                "column, such as ndarray:float32"
            )
        names = tuple(sorted(columns))
        folded: dict[str, str] = {}
        for name in names:
            other = folded.setdefault(name.casefold(), name)
            if other != name:
                raise SchemaError(
                    f"columns {other!r:.80} and {name!r:.80} differ only in case; rename one.", column=name
                )
        codecs = [_parse_column(name, columns[name], allow_unsafe_types=allow_unsafe_types) for name in names]
        return cls(names, tuple(codec.name for codec in codecs), tuple(codec.size for codec in codecs))

    def check_sample(self, sample: Mapping[str, object], row: int) -> None:
        """Return only if the sample has exactly these columns.

        Raises:
            SchemaError: A column is missing or unknown, the first in order of names; `row` and `column` are attributes.
        """
        if not hasattr(sample, "keys"):
            raise SchemaError(f"sample {row}: expected a dict of columns, found {type(sample).__name__}.", row=row)
        known, found = set(self.names), set(sample.keys())
        if found != known:
            missing, extra = sorted(known - found), sorted(map(str, found - known))
            raise SchemaError(
                f"sample {row}: missing columns {missing}, unknown columns {extra}; a sample has exactly the columns "
                "of the data set.",
                row=row,
                column=(missing or extra)[0],
            )

    def columns(self) -> dict[str, str]:
        """Return name to encoding."""
        return dict(zip(self.names, self.encodings, strict=True))

    def config(self, *, compression: str | None, hashes: tuple[str, ...], size_limit: int | None) -> dict[str, Any]:
        """Return the description that index entry and shard share, with the keys that MosaicML's reader takes."""
        return {
            "column_encodings": list(self.encodings),
            "column_names": list(self.names),
            "column_sizes": list(self.sizes),
            "compression": compression,
            "format": "mds",
            "hashes": list(hashes),
            "size_limit": size_limit,
            "version": VERSION,
        }

    def only(self, names: tuple[str, ...]) -> "Schema":
        """Return the schema of some of the columns, in the order of `names`."""
        place_of = {name: place for place, name in enumerate(self.names)}
        places = [place_of[name] for name in names]
        return Schema(
            names,
            tuple(self.encodings[place] for place in places),
            tuple(self.sizes[place] for place in places),
        )

    def codecs(self, *, allow_unsafe_types: bool = False) -> tuple[Encoding, ...]:
        """Return the encodings, column by column.

        Raises:
            SchemaError: One is unknown or unsafe.
        """
        return _parse_columns(self, allow_unsafe_types, num_replaced())


@lru_cache(maxsize=256)
def _parse_columns(schema: Schema, allow_unsafe_types: bool, _: int) -> tuple[Encoding, ...]:  # noqa: FBT001 - cached
    pairs = zip(schema.names, schema.encodings, strict=True)
    return tuple(_parse_column(name, encoding, allow_unsafe_types=allow_unsafe_types) for name, encoding in pairs)


def _parse_column(name: str, encoding: str, *, allow_unsafe_types: bool) -> Encoding:
    try:
        return parse_encoding(encoding, allow_unsafe_types=allow_unsafe_types)
    except SchemaError as error:
        raise SchemaError(
            f"column {name!r:.80}: {error.message}", **{**error.facts, "column": name, "encoding": encoding}
        ) from error


def refused_value(error: SchemaError, *, column: str, encoding: str, row: int) -> SchemaError:
    """Return the error for a value that does not fit its column, with the place that the encoding does not know."""
    return SchemaError(
        f"column {column!r} ({encoding}), sample {row}: {error.message}",
        **{**error.facts, "column": column, "row": row},
    )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise SchemaError(f"a column's name must be text and not empty, found {name!r:.80}.")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SchemaError(f"column {name!r:.80}: the name cannot be written as UTF-8.", column=name) from error
