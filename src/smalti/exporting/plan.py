"""The plan of an export: which samples each file has, decided from the manifest before a byte is read.

The same version and options always give the same plan, so that an export which was interrupted continues with the files
that are missing. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from smalti.stream.arrow import RowSpan


@dataclass(frozen=True)
class FilePlan:
    """One file to write."""

    key: str
    """Name below the target, such as `train/part-00003-of-00012.tar`."""
    spans: tuple[RowSpan, ...]

    @property
    def num_samples(self) -> int:
        """Samples of the file."""
        return sum(span.end - span.begin for span in self.spans)


def plan_files(spans: Sequence[RowSpan], suffix: str, size_limit: int, overhead: int = 0) -> list[FilePlan]:
    """Return the files of an export, by split and in the order of the samples.

    Args:
        spans: All samples; those of a split are neighbours.
        suffix: Ending of the files' names.
        size_limit: Most bytes of samples in a file, before compression and about: an average of each shard counts.
        overhead: Bytes that the format adds to each sample.
    """
    splits: dict[str | None, list[RowSpan]] = {}
    for span in spans:
        splits.setdefault(span.shards[0].partition, []).append(span)
    plans = []
    for split, members in splits.items():
        groups = _grouped(members, size_limit, overhead)
        folder = f"{split}/" if split else ""
        width = max(5, len(str(len(groups))))
        for number, group in enumerate(groups):
            key = f"{folder}part-{number:0{width}d}-of-{len(groups):0{width}d}{suffix}"
            plans.append(FilePlan(key, tuple(group)))
    return plans


def _grouped(spans: Sequence[RowSpan], size_limit: int, overhead: int) -> list[list[RowSpan]]:
    groups: list[list[RowSpan]] = []
    free = 0
    for span in spans:
        for piece in _cut(span, size_limit, overhead):
            size = _size(piece, overhead)
            if size > free:
                groups.append([])
                free = size_limit
            groups[-1].append(piece)
            free -= size
    return groups


def _size(span: RowSpan, overhead: int) -> int:
    return span.num_bytes + overhead * (span.end - span.begin)


def _cut(span: RowSpan, size_limit: int, overhead: int) -> list[RowSpan]:
    """Return a span in pieces that fit a file each; a single sample is never cut."""
    count = span.end - span.begin
    pieces = min(count, -(-_size(span, overhead) // size_limit))
    if pieces < 2:
        return [span]
    ends = [span.begin + count * number // pieces for number in range(pieces + 1)]
    return [
        replace(span, begin=begin, end=end, first_row=span.first_row + begin - span.begin)
        for begin, end in pairwise(ends)
    ]
