"""The report of a soak, as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.soak.verdict import Verdict

_MB = 1e6


def render(verdict: Verdict, facts: Mapping[str, Any]) -> str:
    """The whole page."""
    return "\n".join([*_head(verdict, facts), *_jobs(verdict), *_faults(verdict), *_rest(verdict), *_machine(facts)])


def _head(verdict: Verdict, facts: Mapping[str, Any]) -> Iterator[str]:
    restarted = sum(kind["restarted"] for kind in verdict.faults)
    yield from (f"# {facts['name']}", "", f"`{facts['command']}`", "")
    yield f"**{'PASS' if not verdict.problems else 'FAIL'}**: {verdict.seconds:.0f} s, seed {facts['seed']}."
    yield ""
    yield (
        f"- {verdict.injected} faults of {sum(kind['planted'] > 0 for kind in verdict.faults)} kinds injected, "
        f"{verdict.survived} survived: {verdict.survived - restarted} without an error, {restarted} with a typed error "
        f"and a restart. {sum(verdict.kills.values())} kill -9."
    )
    yield (
        f"- {verdict.samples:,} samples checked byte by byte, {sum(job['num_wrong'] for job in verdict.jobs)} wrong; "
        f"{sum(proof.epochs for proof in verdict.proofs)} epochs finished, each planned sample taken once in each by "
        f"`smalti ledger check --data` ({sum(proof.compared for proof in verdict.proofs):,} ids compared, "
        f"{sum(proof.steps for proof in verdict.proofs):,} steps beside what the readers saw)."
    )
    bound, part = verdict.bounds["mixture"], verdict.limit / verdict.set_bytes
    yield (
        f"- Cache limit {verdict.limit / _MB:.1f} MB, {part:.0%} of {verdict.set_bytes / _MB:.1f} MB in "
        f"{facts['shards']} shards; at most {bound['most'] / _MB:.1f} MB lay there in {bound['looks']} looks."
    )
    for kind, names in verdict.left.items():
        yield f"- Left behind, {kind}: {', '.join(names[:10]) or 'nothing'}."
    yield ""
    if verdict.problems:
        yield from ("## Wrong", "", *(f"- {problem}" for problem in verdict.problems), "")


def _jobs(verdict: Verdict) -> Iterator[str]:
    yield from (
        "## Who read",
        "",
        "A: 2 ranks (1 or 3 after some restarts) with 2 forked workers each. B: 1 rank with spawned workers. steady: "
        "one process from start to end, 2 threads and one heap of malloc, opens the newest version for each epoch. A "
        "and B read one mixture (MDS, MDS with zstd, JSONL); all share one cache folder. Bytes fetched are those that "
        "lives could still tell.",
        "",
        "| who | samples | epochs | lives | ends | errors | longest wait | longest gap | fetched / least |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    )
    for job in verdict.jobs:
        ends = ", ".join(f"{number} {why}" for why, number in sorted(job["ends"].items())) or "-"
        ratio = f"{job['fetched'] / job['least']:.2f}" if job["least"] else "-"
        yield (
            f"| {job['name']} | {job['samples']:,} | {job['epochs']} | {job['lives']} | {ends} | {job['errors']} | "
            f"{job['longest_wait']:.1f} s | {job['longest_gap']:.1f} s | "
            f"{job['fetched'] / _MB:.1f} / {job['least'] / _MB:.1f} MB = {ratio} |"
        )
    yield ""


def _faults(verdict: Verdict) -> Iterator[str]:
    yield from ("## Faults", "", "| fault | what | injected | survived exactly | with a typed error | lost | errors |")
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for kind in verdict.faults:
        errors = ", ".join(f"{number} {name}" for name, number in sorted(kind["errors"].items())) or "-"
        skipped = f" ({kind['skipped']} times nothing to strike)" if kind["skipped"] else ""
        yield (
            f"| {kind['kind']} | {kind['text']} | {kind['planted']}{skipped} | {kind['exact']} | {kind['restarted']} | "
            f"{kind['lost']} | {errors} |"
        )
    yield ""
    yield "An error counts with every fault that may have caused it. Errors by class: " + _counts(verdict.errors) + "."
    if verdict.by_load:
        yield f"{verdict.by_load} timeouts: nothing explains them but the machine's load, 4 and more processes a core."
    yield "Killed: " + _counts(verdict.kills) + ". Versions: " + _counts(verdict.publishes) + "."
    yield ""


def _rest(verdict: Verdict) -> Iterator[str]:
    yield from (
        "## What was held",
        "",
        "| process | descriptors, early | at the end | anonymous memory | a minute | in ten minutes |",
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, held in verdict.held.items():
        yield (
            f"| {name} | {held['descriptors_before']} | {held['descriptors_after']} | "
            f"{held['anonymous'] / _MB:.1f} MB | "
            f"{held['bytes_per_minute'] / 1e3:+.0f} kB | {held['growth_in_ten_minutes']:+.2%}"
            f"{'' if held['judged'] else ' (not judged)'} |"
        )
    requests = ", ".join(f"{name} {number:,}" for name, number in verdict.store["requests"].items())
    yield from (
        "",
        "By least squares, after a quarter of the time and one fault of each kind.",
        "",
        f"The store sent {verdict.store['bytes_sent'] / _MB:.1f} MB of objects and was started "
        f"{verdict.store['starts']} times; "
        f"unsigned requests: {verdict.store['anonymous']}. Its log: {requests}.",
        "",
    )


def _machine(facts: Mapping[str, Any]) -> Iterator[str]:
    import json

    yield from ("## Machine", "", "```json", json.dumps(facts["machine"], indent=1), "```", "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"
