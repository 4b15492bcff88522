"""The interface of sources of rows: what they have as columns, and the parts that processes read side by side.

A source is made in the process that plans a conversion. Its parts are pickled and read in other processes, perhaps on
other machines, and a part is read again from its start if its process ended. So the same source, made again over
unchanged data, lists the same parts with the same rows in the same order.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from smalti.errors import ArgumentError, SchemaError, SmaltiError
from smalti.redaction import hide_options
from smalti.sources.listing import LeftOut

ENCODING = b"smalti.encoding"
"""Key in the metadata of a field of a source's schema: the encoding that the column has unless the caller names one."""
CLASS_NAMES = b"smalti.class_names"
"""Key in the metadata of a field: the names of the classes that its values are numbers of, a list as JSON."""


@dataclass(frozen=True)
class SourceOptions:
    """Options of reading a source."""

    columns: tuple[str, ...] | None = None
    """Columns that are read, in this order; None for all."""
    storage_options: Mapping[str, Any] | None = None
    """Credentials and endpoint of the source's store."""
    part_bytes: int | None = None
    """Stored bytes of about one part, where files can be divided; None chooses by the size of the whole source."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options of one format, such as the delimiter of CSV (JSON); a format refuses those that it does not know."""

    def __post_init__(self) -> None:
        hide_options(self)

    def settings_of(self, files: str, *known: str) -> dict[str, Any]:
        """Return the settings, of which a format knows these.

        Raises:
            ArgumentError: There is another one; `files` names what has no such setting.
        """
        for name in self.settings:
            if name not in known:
                others = f", or give one of {', '.join(known)}" if known else ""
                raise ArgumentError(f"`settings`: {files} have no setting {name!r:.100}; remove it{others}")
        return dict(self.settings)


def check_columns(url: str, wanted: Iterable[str] | None, columns: Collection[str]) -> None:
    """Return only if each column that is wanted, or each of all, is there once.

    Raises:
        SchemaError: One is missing, or is there more than once.
    """
    times = Counter(list(columns))  # a mapping would be counts
    for name in columns if wanted is None else wanted:
        if times[name] > 1:
            raise SchemaError(f"{url} has column {name!r} more than once; rename or drop one", column=name)
        if name not in times:
            raise SchemaError(
                f"{url}: there is no column {name!r}; the columns are {', '.join(columns):.1000}. Correct the names in "
                "`columns` and in `settings`",
                column=name,
            )


def image_encoding(content: bytes) -> str | None:
    """Return the encoding of images like this one, `jpeg` or `png`, by its first bytes; None for others."""
    return "jpeg" if content.startswith(b"\xff\xd8\xff") else "png" if content.startswith(b"\x89PNG") else None


def changed(url: str) -> SmaltiError:
    """Return the error that a source is no longer what was planned."""
    return SmaltiError(
        f"{url} changed while it was read; nothing was published. Convert again when it is complete", source=url
    )


def as_json(setting: Any) -> Any:
    """Return a value of `settings` as JSON, for the record of a conversion: other objects, as Arrow types, by text."""
    if isinstance(setting, Mapping):
        return {str(name): as_json(value) for name, value in setting.items()}
    if isinstance(setting, list | tuple):
        return [as_json(value) for value in setting]
    return setting if setting is None or isinstance(setting, str | int | float | bool) else str(setting)


@runtime_checkable
class SourcePart(Protocol):
    """A piece of a source that one process reads from its start to its end; can be pickled.

    A part opens its file or store in `batches`, not before: it must be small when it is pickled. If each row comes from
    a file of its own, a part may have a method `origin(row: int) -> str` that names it; errors then name this file.
    """

    @property
    def name(self) -> str:
        """Name for messages, such as `a/data.parquet, row groups 0 to 3`; unique in the source."""

    @property
    def num_bytes(self) -> int:
        """Stored size of about what `batches` reads, for the division of work and for progress; 0 if unknown."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a stable order, in batches of bounded memory; each has the columns of the schema, in order.

        Raises:
            SmaltiError: The part cannot be read, or a value does not fit the schema; the message names the file and,
                where it is known, the row.
        """


@runtime_checkable
class Source(Protocol):
    """Rows to convert.

    A source may also have an attribute `left_out`, a `smalti.sources.listing.LeftOut`: the files that are not read.
    Each part makes its rows in one of the processes; with more than one, the class of the parts must be in a module
    that can be imported.

    Examples:
        ```python
        from dataclasses import dataclass

        import pyarrow as pa


        @dataclass(frozen=True)
        class Squares:
            begin: int
            num_bytes: int = 800

            @property
            def name(self):
                return f"squares from {self.begin}"

            def batches(self):
                numbers = range(self.begin, self.begin + 100)
                yield pa.RecordBatch.from_pydict({"n": list(numbers), "square": [n * n for n in numbers]})


        class SquareSource:
            url = "squares"

            def schema(self):
                return pa.schema([("n", pa.int64()), ("square", pa.int64())])

            def parts(self):
                return [Squares(begin) for begin in range(0, 1000, 100)]

            def identity(self):
                return {"squares": 1000}  # None for rows that cannot be recognised again


        assert convert(SquareSource(), "squares", processes=1).rows == 1000
        ```
    """

    @property
    def url(self) -> str:
        """Place of the rows for messages and lineage, without credentials."""

    def schema(self) -> pa.Schema:
        """Return the columns, with Arrow types; fields may have metadata: `ENCODING`, `CLASS_NAMES`."""

    def parts(self) -> Sequence[SourcePart]:
        """Return the parts, in a stable order; the rows of the version are in the order of the parts.

        A large file that can be divided should be several parts, so that all cores work on it. Parts that are much
        smaller than `part_bytes` are read in groups.
        """

    def identity(self) -> Any:
        """Return what identifies the rows now (JSON): a digest of names, sizes and entity tags of files, or of rows.

        Equal identities mean equal rows. It is asked for again after the rows were read: if it is another one then,
        nothing is published. None if the rows cannot be recognised again.

        Raises:
            SmaltiError: The source has changed since it was opened.
        """


@dataclass(frozen=True)
class OpenedPart:
    """A part of an `OpenedSource`."""

    name: str
    num_bytes: int
    batches: Callable[[], Iterator[pa.RecordBatch]] = field(repr=False)
    """A function of each format with its arguments, which can be pickled; `SourcePart` says what it yields."""
    origin: Callable[[int], str] | None = field(default=None, repr=False)
    """Returns the name of the file that a row comes from, if each row comes from a file of its own."""


@dataclass(frozen=True)
class OpenedSource:
    """A source of one of the formats here: its columns and parts are known when it is opened."""

    url: str
    columns: pa.Schema
    pieces: Sequence[SourcePart] = field(repr=False)
    identity: Callable[[], Any] = field(repr=False)  # a function of each format; `Source` says what it returns
    left_out: LeftOut = field(default_factory=LeftOut, repr=False)

    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self.columns

    def parts(self) -> Sequence[SourcePart]:
        """Return the parts."""
        return self.pieces
