"""The rows about DataFrames that become shard sets: those of issue 6, on `local[2]`."""

from benchmarks.goals import Goal, at_least
from benchmarks.row import Entrant, Row, participants

_ZSTD = {"zstd": True}
_DEFAULT = {"is_default": True}
_GOALS = (at_least(3, "mosaicml"), at_least(0.7, "parquet"))
_SOURCE = {"smalti-source": (at_least(1 / 1.1, "smalti"),)}
_FLOORS = participants("parquet", "frame-arrow", **{"frame-read": 1})
_MORE = ("first_rows_per_s", "cpu_us_per_row", "first_cpu_us_per_row", "mb_per_s", "stored_mb")


def _row(key: str, title: str, workload: str, earlier: str, *, zstd: bool, samples: int | None = None) -> Row:
    ours = (Entrant("smalti default", "smalti", _DEFAULT),)
    both = (Entrant("smalti zstd", "smalti", _ZSTD), Entrant("mosaicml zstd", "mosaicml", _ZSTD))
    zipped = (*ours, *both) if zstd else ours
    goals: dict[str, tuple[Goal, ...]] = {"smalti": _GOALS, **_SOURCE}
    if zstd:
        goals["smalti zstd"] = (at_least(3, "mosaicml zstd"),)
    return Row(
        f"spark-{key}", f"DataFrame to shards, {title}", "frame", workload, "rows_per_s", "rows/s",
        (*participants("smalti", "smalti-source", "mosaicml"), *zipped, *_FLOORS), goals, "parquet", earlier,
        more=_MORE, samples=samples,
    )  # fmt: skip


def _files_row() -> Row:
    """A folder of photos, by `binaryFile`; with the default compression of both functions, too."""
    few = Entrant("mosaicml, 4 partitions", "mosaicml", {"partitions": 4})  # for those who know that Spark makes 125
    defaults = (few, Entrant("smalti default", "smalti", _DEFAULT), Entrant("mosaicml zstd", "mosaicml", _ZSTD))
    return Row(
        "spark-files", "A folder of 41 KB photos straight to shards, from `binaryFile`", "frame", "photos",
        "rows_per_s", "rows/s", (*participants("smalti", "mosaicml"), *defaults, *_FLOORS),
        {"smalti": (at_least(5, "mosaicml"),), "smalti default": (at_least(5, "mosaicml zstd"),)}, "parquet",
        options={"source": "files"}, more=_MORE, samples=4_000,
    )  # fmt: skip


SPARK_ROWS: tuple[Row, ...] = (
    _row("rows", "(long, int, string, 1 KB binary)", "rows", "60k · - · 282k", zstd=True),
    _row("jpeg", "14.4 KB pictures, label, name", "jpeg", "3.0k · - · 12.6k", zstd=False),
    _row("photos", "41 KB photos, label, name", "photos", "", zstd=False, samples=20_000),
    _files_row(),
)
