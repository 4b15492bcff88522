"""Tables of simulated runs, as docs/scale.md shows them."""

from collections.abc import Sequence
from typing import Any

Run = dict[str, Any]
_SHOWN_HOSTS = (8, 12, 32, 64, 96, 256, 1024)


def report_of(runs: list[Run]) -> str:
    """Return the report of a sweep: a heading and a table for each of its parts."""
    sections = ["# Fleets, simulated", ""]
    for name in dict.fromkeys(run["data"]["name"] for run in runs if run["part"] == "hosts"):
        here = [run for run in runs if run["part"] == "hosts" and run["data"]["name"] == name]
        shown = [run for run in here if run["fleet"]["hosts"] in _SHOWN_HOSTS]
        sections += [f"### hosts: {name}", "", table_of(shown), ""]
    for part, table in (("caches", _caches), ("lookahead", _lookaheads), ("check", _check)):
        here = [run for run in runs if run["part"] == part]
        if here:
            sections += [f"### {part}", "", table(here), ""]
    return "\n".join(sections)


def table_of(runs: list[Run]) -> str:
    """Return a table with a row for each run."""
    header = (
        "hosts", "order", "canonical nodes", "fetched per host, first epoch", "amplification", "later epoch",
        "first batch", "later epoch's", "waiting, first epoch", "later epoch", "requests", "price of both",
    )  # fmt: skip
    rows = []
    for run in runs:
        first, later = run["epochs"][0], run["epochs"][-1]
        rows.append(
            (
                f"{run['fleet']['hosts']:,}",
                run["label"],
                str(run["canonical_nodes"]),
                size(first["bytes_per_host"]),
                f"{first['amplification']:.2f}",
                size(later["bytes_per_host"]),
                seconds(first["first_batch_s"]),
                seconds(later["first_batch_s"]),
                share(first["stall_share"]),
                share(later["stall_share"]),
                f"{first['fetches']:,}",
                f"${first['price'] + later['price']:,.0f}",
            )
        )
    return table(header, rows)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def size(num_bytes: float) -> str:
    """Return bytes as people write them."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= 0.995 * factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:.0f}"


def seconds(value: float) -> str:
    """Return seconds with two or three digits."""
    return "0 s" if value < 0.005 else f"{value:.2g} s" if value < 100 else f"{value:,.0f} s"


def share(value: float) -> str:
    """Return a share in percent."""
    return f"{100 * value:.1f} %"


def _caches(runs: list[Run]) -> str:
    labels = list(dict.fromkeys(run["label"] for run in runs))
    rows = []
    for cache in dict.fromkeys(run["fleet"]["cache_bytes"] for run in runs):
        here = {run["label"]: run for run in runs if run["fleet"]["cache_bytes"] == cache}
        fetched = [here[label]["epochs"][-1]["bytes_per_host"] / here[label]["share_bytes"] for label in labels]
        rows.append((size(cache), share(cache / here[labels[0]]["share_bytes"]), *map(share, fetched)))
    return table(("cache of a host", "of what it reads", *labels), rows)


def _lookaheads(runs: list[Run]) -> str:
    rows = []
    for run in runs:
        fleet, epoch = run["fleet"], run["epochs"][0]
        ahead = fleet["predownload"]
        rows.append(
            (
                f"{run['store']['host_bytes_per_s'] * 8 / 1e9:g} Gbit/s",
                "default" if ahead is None else f"{ahead:,}",
                size(run["in_use_bytes"]),
                seconds(epoch["first_batch_s"]),
                share(epoch["stall_s"] / epoch["seconds"]),
                f"{epoch['stalls']:,}",
            )
        )
    return table(
        ("link of the host", "`predownload`", "in use at once", "first batch", "waiting after it", "steps that wait"),
        rows,
    )


def _check(runs: list[Run]) -> str:
    header = (
        "order",
        "cache",
        "hosts simulated",
        "by",
        "epoch",
        "fetched per host",
        "requests",
        "first batch",
        "seconds",
    )
    rows = []
    for run in runs:
        cache = run["fleet"]["cache_bytes"]
        for number, epoch in enumerate(run["epochs"], start=1):
            rows.append(
                (
                    "MosaicML" if run["order"]["name"] == "mosaicml" else "window",
                    "no limit" if cache is None else size(cache),
                    f"{run['simulated_hosts']} of {run['fleet']['hosts']}",
                    run["label"].removeprefix("by "),
                    str(number),
                    size(epoch["bytes_per_host"]),
                    f"{epoch['fetches']:,}",
                    seconds(epoch["first_batch_s"]),
                    f"{epoch['seconds']:.1f}",
                )
            )
    return table(header, rows)
