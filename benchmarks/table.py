"""The rows of the comparison: what is done, who does it, and what is asked of Smalti.

Goals and earlier figures are those of issue 3; those of issue 4 stand in `start_rows` and `order_rows`. The earlier
figures were taken on a two-core machine; they are printed beside the new ones, so that a faster or a slower machine is
seen for what it is.
"""

from benchmarks.decode_rows import DECODE_ROWS, IMAGE_ROWS
from benchmarks.goals import at_least, at_most
from benchmarks.link_rows import LINK_ROWS
from benchmarks.manifest_rows import MANIFEST_ROWS
from benchmarks.order_rows import ORDER_ROWS
from benchmarks.row import LARGE, SMALL, Entrant, Row, participants
from benchmarks.spark_rows import SPARK_ROWS
from benchmarks.start_rows import START_ROWS

_FORMS = (Entrant("smalti rows", "smalti", {"form": "rows"}), Entrant("smalti Arrow", "smalti", {"form": "batches"}))
_WDS_TINY = Entrant("wds", "wds", max_runs=1, max_samples=60_000)
_ALIAS = participants("smalti-alias")
_AS_OWN_ROWS = {"smalti-alias": (at_least(0.9, "smalti rows"),)}
_READ = participants("smalti", "smalti-torch", "smalti-alias")
_AS_OWN = {"smalti-alias": (at_least(0.9, "smalti-torch"),)}
_WRITE_FLOORS = participants("solb", "solb-rows", "plain", "plain-fsync", "memcpy")

_WRITING = (
    Row(
        "write-tiny", "write tiny: (id, 100 bytes)", "write", "tiny", "samples_per_s", "rows/s",
        (*_FORMS, *_ALIAS, *participants("mosaicml", "grain", "hfds", litdata=1), _WDS_TINY, *_WRITE_FLOORS),
        {"smalti rows": (at_least(1.3e6), at_least(0.6, "solb-rows")),
         "smalti Arrow": (at_least(0.8, "solb"),), **_AS_OWN_ROWS},
        "solb", "448k · 641k · 4.6M",
    ),
    Row(
        "write-jpeg", "write jpeg: 15 KB pictures, label, name", "write", "jpeg", "mb_per_s", "MB/s",
        (*_FORMS, *_ALIAS, *participants("mosaicml", "grain", "hfds", litdata=1, wds=1), *_WRITE_FLOORS),
        {"smalti rows": (at_least(1.0, "hfds"),), "smalti Arrow": (at_least(0.8, "solb"),), **_AS_OWN_ROWS},
        "solb", "562 · 1,302 · 1,554",
    ),
    Row(
        "write-tokens", "write tokens: 2048 x int32", "write", "tokens", "mb_per_s", "MB/s",
        (*_FORMS, *_ALIAS, *participants("mosaicml", "grain", hfds=1, litdata=1, wds=1), *_WRITE_FLOORS),
        {"smalti Arrow": (at_least(0.8, "solb"),), **_AS_OWN_ROWS}, "solb", "366 · 1,453 · 900-1,400",
    ),
    Row(
        "write-tokens-zstd", "write tokens, zstd and a hash", "write", "tokens", "mb_per_s", "MB/s",
        (*_FORMS, *_ALIAS, *participants("mosaicml", "grain", litdata=1)),
        {"smalti Arrow": (at_least(1.5, "best"),), **_AS_OWN_ROWS}, None, "134 · 193 · -", {"zstd": True},
        more=("stored_mb",),
    ),
)  # fmt: skip

_READERS = participants("mosaicml", "hfds", "litdata", litfull=1, grain=1, wds=1)
_LATER = ("later_samples_per_s", "neighbours")


def _reading(workload: str, goal: float, earlier: str, peers: tuple[Entrant, ...]) -> Row:
    return Row(
        f"read-{workload}", f"read {workload} through the loader, shuffled, 0 workers", "read", workload,
        "samples_per_s", "samples/s", (*_READ, *peers, *participants("sol", "solb")),
        {"smalti": (at_least(goal),), **_AS_OWN}, "solb", earlier, more=_LATER, needs_true_shuffle=True,
    )  # fmt: skip


def _piped(workload: str, earlier: str) -> Row:
    return Row(
        f"read-{workload}-2w", f"read {workload}, shuffled, 2 workers", "read", workload, "samples_per_s", "samples/s",
        (*_READ, *participants("mosaicml", "hfds", litdata=1, grain=1), *participants("sol", "solb")),
        {"smalti": (at_least(2, "sol"),), **_AS_OWN}, "sol", earlier, {"workers": 2}, more=_LATER,
        needs_true_shuffle=True,
    )  # fmt: skip


_READING = (
    _reading("tiny", 1.2e6, "9.4k · 329k · 2.1M", _READERS),
    _reading("tokens", 7e5, "22.8k · 123k · 1.19M", _READERS),
    _reading("jpeg", 3e5, "14.9k · 164k · 389k", _READERS),
    Row(
        "read-jpeg-decoded-2w", "read jpeg, decoded and cropped to 224, 2 workers", "read", "jpeg",
        "samples_per_s", "samples/s",
        (*_READ, *participants("mosaicml", "litdata", "hfds", grain=1, wds=1), *participants("sol", "decode")),
        {"smalti": (at_least(1.0, "decode"), at_least(1.2, "decode")), **_AS_OWN}, "decode", "3.1k · 4.8k · 4.8k",
        {"workers": 2, "decode": True},
    ),
    Row(
        "read-jpeg-stored", "read jpeg through the loader, stored order, 0 workers", "read", "jpeg",
        "samples_per_s", "samples/s", participants("smalti", "litdata", "hfds", "sol", "solb"),
        {"smalti": (at_least(1.0, "litdata"),)}, "solb", "- · 174k · -", {"shuffle": False}, more=_LATER,
    ),
    _piped("jpeg", "17k · 38k · 53k"),
    _piped("tokens", "23.7k · 65.8k · 112k"),
)  # fmt: skip


def _opening(copies: int, samples: str, goal: float, earlier: str, slow: int | None) -> Row:
    runs = {} if slow is None else {"mosaicml": slow, "hfds": slow}
    quick = () if runs else ("mosaicml", "hfds")
    return Row(
        f"open-{samples}", f"open to first batch, {samples} samples, shuffled", "open", "tiny", "seconds", "s",
        (Entrant("smalti manifest", "smalti"), Entrant("smalti index.json", "smalti-plain"), *_ALIAS,
         *participants("litdata", "wds", "grain", *quick, **runs)),
        {**{label: (at_most(goal),) for label in ("smalti manifest", "smalti index.json")},
         "smalti-alias": (at_most(1.0, "mosaicml"),)}, None, earlier,
        lower_is_better=True, more=("import_s",), copies=copies,
    )  # fmt: skip


# The fewer calls, the more batches it takes to see them beside what a start costs; the slow ones make tens per sample.
_TRACED = (
    Entrant("smalti", "smalti", {"batches": 600}, max_runs=1),
    Entrant("mosaicml", "mosaicml", {"batches": 60}, max_runs=1),
    Entrant("litdata", "litdata", {"batches": 200}, max_runs=1),
    Entrant("hfds", "hfds", {"batches": 200}, max_runs=1),
)

_OTHERS = (
    Row(
        "access-tiny", "ds[i] at random, tiny", "access", "tiny", "p50_us", "µs",
        participants("smalti", "smalti-alias", "mosaicml", "hfds", "solb", litdata=1, grain=1),
        {"smalti": (at_most(4),), "smalti-alias": (at_most(1.1, "smalti"),)},
        "solb", "p50 11.8 · 12 · 0.9", lower_is_better=True,
    ),
    Row(
        "access-tiny-p99", "the same, 99th percentile", "access", "tiny", "p99_us", "µs",
        participants("smalti", "smalti-alias", "mosaicml", "hfds", "solb", litdata=1, grain=1),
        {"smalti": (at_most(15),), "smalti-alias": (at_most(1.1, "smalti"),)},
        "solb", "p99 83 · 15 · 5", lower_is_better=True,
    ),
    _opening(SMALL, "1e5", 0.03, "0.12 · 0.03 · -", None),
    _opening(LARGE, "1e8", 0.2, "21.5 · 0.07 · -", 1),
    Row(
        "system-calls-tiny", "system calls per sample, tiny, 0 workers", "system-calls", "tiny", "calls_per_sample", "",
        _TRACED, {"smalti": (at_most(0.01),)}, None, "48 · ~0 · -", lower_is_better=True,
    ),
    Row(
        "system-calls-tokens", "system calls per sample, tokens, 0 workers", "system-calls", "tokens",
        "calls_per_sample", "", _TRACED, {"smalti": (at_most(0.01),)}, None, "54.7 · 0.01 · -", lower_is_better=True,
    ),
)  # fmt: skip

ROWS: tuple[Row, ...] = (
    *_WRITING,
    *_READING,
    *DECODE_ROWS,
    *IMAGE_ROWS,
    *_OTHERS,
    *START_ROWS,
    *ORDER_ROWS,
    *LINK_ROWS,
    *SPARK_ROWS,
    *MANIFEST_ROWS,
)
