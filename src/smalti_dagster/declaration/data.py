"""The sections of a declaration about the data: their source, partitions, split, preparation and storage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import dagster as dg
from pydantic import Field, model_validator

from smalti_dagster.declaration.values import Function, Share, require_import_path

PARTITION = "{partition}"
"""Stands for the key of a partition in the address of its images."""

MANIFESTS = (".csv", ".parquet")
"""Endings of the names of manifests."""


@dataclass(frozen=True)
class SourceForm:
    """One form of a source, such as a folder or a query."""

    kind: Literal["images", "rows"]
    """Its content: rows, which `sources/rows.py` reads, or images, which `sources/images.py` finds."""
    text: str = ""
    """The value of the field, in the words of a run's configuration; of rows."""
    names_function: bool = False
    """True if the value is a `module:function`."""


FORMS = {
    "folder": SourceForm("images"),
    "manifest": SourceForm("images"),
    "table": SourceForm("rows", "name in the catalogue, or address if the declaration has a format"),
    "sql": SourceForm("rows", "a query"),
    "dataframe": SourceForm("rows", "module:function", names_function=True),
    "generate": SourceForm("images", names_function=True),
}
"""The forms of a source, each named as its field of `Source`."""
GENERATE = "generate"
"""The form that may stand beside another one."""


def forms_of(kind: Literal["images", "rows"]) -> tuple[str, ...]:
    """Return the names of the forms of a kind."""
    return tuple(name for name, form in FORMS.items() if form.kind == kind)


class Source(dg.Model, dg.Resolvable):
    """The place of the raw data: one of `folder`, `manifest`, `table`, `sql`, `dataframe`, `generate`.

    `generate` may stand beside another one, and is used while that one is empty. `{{ env.NAME }}` is replaced by a
    variable of the environment when the declaration is loaded, and shown in the UI. `${NAME}` is replaced when a run
    reads the source, and shown as it stands: use it for addresses that hold a secret.
    """

    folder: str | None = Field(
        default=None,
        description="Folder or archive (.tgz, .tar, .zip) with one sub-folder per class: path, s3://, gs://, abfs://, "
        "dbfs:/Volumes/..., https:// for archives.",
    )
    manifest: str | None = Field(
        default=None, description="CSV or Parquet file with a row for each image: a path relative to it, and a label."
    )
    path_column: str = Field(default="path", description="Column of the manifest with the paths.")
    label_column: str = Field(default="label", description="Column of the manifest with the labels.")
    table: str | None = Field(default=None, description="Name in the Spark catalogue, or address of a table's folder.")
    format: Literal["delta", "iceberg", "parquet", "orc", "csv", "json", "text"] | None = Field(
        default=None, description="Format of a table given by its address."
    )
    options: dict[str, str] = Field(
        default={},
        description='Options of Spark\'s reader of such a table, such as {header: "true"} for CSV.',
    )
    sql: str | None = Field(default=None, description="A query of Spark SQL.")
    dataframe: Function | None = Field(
        default=None, description="module:function, called with the Spark session; returns a DataFrame."
    )
    version: Function | None = Field(
        default=None,
        description="Rows only: module:function without arguments that needs no Spark; returns a text that changes "
        "whenever the rows do, or None. While it is the same, no rows are read.",
    )
    generate: Function | None = Field(
        default=None,
        description="module:function, called with an empty folder (a pathlib.Path) and `generate_options`: writes one "
        "sub-folder of images per class into it.",
    )
    generate_options: dict[str, Any] = Field(default={}, description="Further arguments of that function, by name.")

    @model_validator(mode="after")
    def _has_one_kind(self) -> "Source":
        given = [name for name in FORMS if getattr(self, name) and name != GENERATE]
        if len(given) > 1 or not (given or self.generate):
            raise ValueError(
                f"give exactly one of {', '.join(FORMS)} as the source, found {', '.join(given) or 'none'}"
            )
        if self.manifest and not self.manifest.endswith(MANIFESTS):
            raise ValueError(f"`manifest` must be a file {' or '.join(MANIFESTS)}, found {self.manifest!r}")
        for name, path in self.functions.items():
            require_import_path(name, path)
        if self.generate_options and not self.generate:
            raise ValueError("`generate_options` are arguments of the function that `generate` names: give both")
        if self.version and self.kind == "images":
            raise ValueError(f"`version` needs a source of rows ({', '.join(forms_of('rows'))})")
        if self.options and self.format is None:
            raise ValueError("`options` are those of the reader of a table given by its address: give its `format`")
        return self

    @property
    def form(self) -> str:
        """The field that holds the source."""
        return next((name for name in FORMS if getattr(self, name)), GENERATE)

    @property
    def text(self) -> str:
        """The value of that field; empty for a generated set."""
        return str(getattr(self, self.form)) if self.form != GENERATE else ""

    @property
    def kind(self) -> Literal["images", "rows"]:
        """`images` for folders, manifests and generated sets, `rows` for tables, queries and DataFrames."""
        return FORMS[self.form].kind

    @property
    def functions(self) -> dict[str, str]:
        """The functions that the source names, as `module:function`, by field; `version` among them."""
        names = [*(name for name, form in FORMS.items() if form.names_function), "version"]
        return {name: path for name in names if (path := getattr(self, name))}


_WINDOWS: dict[str, Callable[..., dg.PartitionsDefinition[str]]] = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "week": dg.WeeklyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}


class Partitions(dg.Model, dg.Resolvable):
    """Partitions of the source: a run reads its own, and the shard set holds those that were read so far.

    The address of images holds `{partition}`, such as `s3://lake/photos/day={partition}`; rows have a column.
    """

    by: Literal["hour", "day", "week", "month", "key"] = Field(
        description="Windows of time, or keys that are found in the source (images) or added in the UI (rows)."
    )
    start: str | None = Field(
        default=None, description="Key of the first window: 2026-11-01, or 2026-11-01-00:00 for hours. Not for keys."
    )
    timezone: str = Field(default="UTC", description="Time zone of the windows.")
    column: str | None = Field(
        default=None, description="Rows only: column that holds the key of each row, as text or date."
    )

    @model_validator(mode="after")
    def _has_a_start(self) -> "Partitions":
        if (self.by == "key") != (self.start is None):
            raise ValueError("`start` is the first window of time: give it unless partitions are by `key`")
        try:
            if self.start is not None:
                self.definition("").get_first_partition_key()
        except ValueError as error:
            raise ValueError(f"`start` must be like 2026-11-01, of hours 2026-11-01-00:00: {error}") from error
        return self

    def definition(self, name: str) -> dg.PartitionsDefinition[str]:
        """Return Dagster's definition of the partitions of a data set."""
        if self.start is None:
            return dg.DynamicPartitionsDefinition(name=f"{name}_partitions")
        return _WINDOWS[self.by](start_date=self.start, timezone=self.timezone)


class Split(dg.Model, dg.Resolvable):
    """The split of the rows: by a stable hash into shares, or by a column."""

    validation: Share = 0.2
    test: Share = Field(default=0.0, description="Share that is kept for a test after training.")
    fixed: bool = Field(
        default=False,
        description="Images only: a hash of its path alone decides the split of a file for good, and shares are met "
        "on average; always so with `test`, and for rows.",
    )
    key: str | None = Field(
        default=None,
        description="Rows only: column that is hashed, so that equal values stay together; by default all.",
    )
    column: str | None = Field(default=None, description="Rows only: column with the name of the split, not shares.")
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _leaves_training_rows(self) -> "Split":
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave no rows to train on")
        return self


class Image(dg.Model, dg.Resolvable):
    """Images decoded, rotated upright, cropped to a square, scaled and encoded as JPEG."""

    size: int = Field(default=96, ge=8, le=4096, description="Side of the square in pixels.")
    quality: int = Field(default=90, ge=1, le=100, description="JPEG quality.")
    on_bad_image: Literal["fail", "skip"] = Field(
        default="skip",
        description="Treatment of files that are not usable as images. skip: leave them out, up to "
        "`checks.max_bad_share`; fail: stop if there is one.",
    )


class Prepare(dg.Model, dg.Resolvable):
    """The preparation of each row before it is stored: `image`, or a function of the user's."""

    image: Image | None = None
    function: Function | None = Field(
        default=None, description="module:function over Arrow or pandas batches, as `dataframe_to_mds(transform=...)`."
    )

    @model_validator(mode="after")
    def _has_one_kind(self) -> "Prepare":
        if (self.image is None) == (self.function is None):
            raise ValueError("give exactly one of `image` and `function` in `prepare`")
        if self.function is not None:
            require_import_path("function", self.function)
        return self


class Shards(dg.Model, dg.Resolvable):
    """Storage of rows; see docs/types.md and docs/format.md."""

    columns: dict[str, str | None] | None = Field(
        default=None, description="Encoding by column, null for that of its type; by default all columns."
    )
    nulls: dict[str, str | dict[str, Any]] = Field(
        default={}, description="Rows only: null policy by column: reject, mask or {default: value}."
    )
    compression: str = Field(default="", description="zstd, zstd:<level> or auto (if it helps); none by default.")
    hashes: list[str] = Field(default=["xxh3_64"], description="Checksums of every shard.")
    size_limit: str = Field(default="16mb", description="Largest shard before compression.")
    target: str = Field(default="", description="Address of the shard set; by default below the storage root.")
