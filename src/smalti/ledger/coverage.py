"""The set of an epoch's positions that were taken: one bit per position, in blocks that are allocated on demand."""

import numpy as np
from numpy.typing import NDArray

from smalti.errors import FormatError
from smalti.ledger.sums import Ids

_BLOCK = 1 << 20  # positions, 128 KiB of bits
_FREE_BLOCKS = 256  # 32 MiB; more blocks are refused if they are nearly empty, as those of a damaged ledger

Bits = NDArray[np.uint8]


class Coverage:
    """A set of positions that reports duplicates and gaps."""

    def __init__(self) -> None:
        self._blocks: dict[int, Bits] = {}
        self._spans: list[tuple[int, int]] = []
        self.count = 0
        """Number of positions in the set."""

    def add(self, positions: Ids) -> Ids:
        """Add positions; return those that were in the set or occur more than once in `positions`, sorted and unique.

        Raises:
            FormatError: the positions are so scattered that no run can have taken them.
        """
        if not positions.size:
            return positions
        ordered = np.sort(positions, kind="stable")  # fast, as a rank's positions are nearly sorted
        first = np.empty(ordered.size, dtype=bool)
        first[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        duplicates = [ordered[~first]]
        unique = ordered[first]
        blocks, starts = np.unique(unique // _BLOCK, return_index=True)
        for number, within in zip(blocks.tolist(), np.split(unique, starts[1:]), strict=True):
            duplicates.append(self._add_to_block(number, within - number * _BLOCK) + number * _BLOCK)
        if len(self._blocks) > _FREE_BLOCKS + 64 * self.count // _BLOCK:
            raise FormatError(
                f"{self.count} positions are scattered over {len(self._blocks)} blocks of {_BLOCK}: no run reads "
                "so; the ledger's positions are damaged."
            )
        return np.unique(np.concatenate(duplicates))

    def add_span(self, begin: int, end: int) -> int:
        """Add the span [begin, end), after all single positions; return how many of them were in the set."""
        missing, _ = self.gaps(begin, end, 0)
        self._spans.append((begin, end))
        self.count += missing
        return end - begin - missing

    def gaps(self, begin: int, end: int, most: int) -> tuple[int, list[tuple[int, int]]]:
        """Return the number of positions missing in [begin, end), and the first `most` spans of them."""
        missing, gaps, covered = 0, list[tuple[int, int]](), begin
        for start, stop in [*sorted(self._spans), (end, end)]:
            count, more = self._gaps_between(covered, min(start, end), most)
            missing += count
            gaps = _joined(gaps, more, most)
            covered = max(covered, stop)
        return missing, gaps[:most]

    def _gaps_between(self, begin: int, end: int, most: int) -> tuple[int, list[tuple[int, int]]]:
        spans: list[tuple[int, int]] = []
        place, missing = begin, 0
        for number in sorted(self._blocks):
            low, high = max(begin, number * _BLOCK), min(end, (number + 1) * _BLOCK)
            if low >= high:
                continue
            missing += low - place
            spans = _joined(spans, [(place, low)], most)
            missing_in_block, holes = self._holes(number, low, high, most)
            missing += missing_in_block
            spans = _joined(spans, holes, most)
            place = high
        missing += max(0, end - place)
        return missing, _joined(spans, [(place, end)], most)

    def _add_to_block(self, number: int, within: Ids) -> Ids:
        block = self._blocks.setdefault(number, np.zeros(_BLOCK // 8, dtype=np.uint8))
        byte, bit = within >> 3, np.left_shift(np.uint8(1), (within & 7).astype(np.uint8))
        present: Ids = within[(block[byte] & bit) != 0]
        starts = np.flatnonzero(np.diff(byte, prepend=-1))
        block[byte[starts]] |= np.bitwise_or.reduceat(bit, starts)
        self.count += within.size - present.size
        return present

    def _holes(self, number: int, low: int, high: int, most: int) -> tuple[int, list[tuple[int, int]]]:
        bits = np.unpackbits(self._blocks[number], bitorder="little")
        here = bits[low - number * _BLOCK : high - number * _BLOCK]
        missing = here.size - int(np.count_nonzero(here))
        if not missing:
            return 0, []
        # The difference of bools is "not equal"; bytes would wrap around.
        edges = np.flatnonzero(np.diff(here.astype(bool), prepend=True, append=True))[: 2 * most + 2] + low
        return missing, list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _joined(spans: list[tuple[int, int]], more: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return spans in order, adjacent ones merged; one more than `most` is kept, to merge with later ones."""
    for start, stop in more:
        if start >= stop:
            continue
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop)
        elif len(spans) <= most:
            spans.append((start, stop))
        else:
            break
    return spans
