"""The number of samples that each stream gives to an epoch: exact arithmetic on the weights as written.

`repeat=0.7` of 10 samples is 7, although the float nearest to 0.7 is below it. Proportions divide the epoch exactly:
each stream gets its share rounded down, and some of the streams with a fraction left, chosen by key, get one more.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from smalti.order.keys import Purpose, keyed_permutation
from smalti.order.mosaic.weights import StreamWeight

MAX_EPOCH = (1 << 62) - 1
"""Samples that an epoch may take, inclusive: places and their sums stay numbers of 64 bits."""


def samples_taken(
    totals: Sequence[int], weights: Sequence[StreamWeight], *, epoch_size: int | None, seed: int
) -> list[int]:
    """Return the samples that an epoch takes of each stream. Pure, and the same in every epoch.

    Args:
        totals: Samples of each stream.
        weights: Weight of each stream.
        epoch_size: Samples of an epoch, with proportions or without any weight; None for as many as there are.
        seed: Base seed: it chooses the streams that get one more sample by rounding.

    Raises:
        ValueError: relative and absolute weights are mixed, `epoch_size` is given with absolute ones, a weight is not
            finite, samples are to be taken of a stream that has none, or more than `MAX_EPOCH` altogether.
    """
    relative = [weight.proportion is not None for weight in weights]
    if any(relative) and not all(relative):
        raise ValueError(
            "`proportion` must be given for all streams or for none: it is relative, `repeat` and `choose` are "
            f"absolute; found it for {sum(relative)} of {len(relative)} streams."
        )
    if not all(relative) and epoch_size is not None and any(weight != StreamWeight() for weight in weights):
        raise ValueError(f"`epoch_size` must not be given with `repeat` or `choose`, found {epoch_size}.")
    parts = parts_of(totals, weights)
    if all(relative) or epoch_size is not None:
        taken = shared_out(sum(totals) if epoch_size is None else epoch_size, parts, seed)
    else:
        taken = [int(part) for part in parts]
    for stream, (total, count) in enumerate(zip(totals, taken, strict=True)):
        check_not_empty(stream, count, total)
    if sum(taken) > MAX_EPOCH:
        raise ValueError(
            f"the streams' weights take {sum(taken)} samples in an epoch, expected at most {MAX_EPOCH}: give smaller "
            "ones, and read more epochs."
        )
    return taken


def check_not_empty(stream: int, count: int, total: int) -> None:
    """Check that `count` samples can be taken of a stream that has `total`.

    Raises:
        ValueError: the stream has none.
    """
    if count and not total:
        raise ValueError(f"stream {stream} has no samples, and {count} are to be taken of it: leave it out.")


def parts_of(totals: Sequence[int], weights: Sequence[StreamWeight]) -> list[Fraction]:
    """Return the shares by which an epoch, or the rest of one, is divided: proportions, or else samples."""
    return [_part(total, weight) for total, weight in zip(totals, weights, strict=True)]


def _part(total: int, weight: StreamWeight) -> Fraction:
    if weight.proportion is not None:
        return _written("proportion", weight.proportion)
    if weight.choose is not None:
        return Fraction(weight.choose)
    return Fraction(total if weight.repeat is None else math.floor(_written("repeat", weight.repeat) * total))


def shared_out(samples: int, parts: Sequence[Fraction], seed: int) -> list[int]:
    """Divide samples in proportion to `parts`: each share is rounded down, and the remainder distributed by key."""
    whole = sum(parts)
    if not whole:
        raise ValueError("the streams' weights must sum to more than 0: all streams are empty, or have weight 0.")
    exact = [samples * part / whole for part in parts]
    taken = [math.floor(share) for share in exact]
    lacking = samples - sum(taken)
    order = keyed_permutation(len(parts), Purpose.SHORTFALL, seed=seed).tolist()
    for stream in [stream for stream in order if exact[stream] != taken[stream]][:lacking]:
        taken[stream] += 1
    return taken


def _written(name: str, value: float) -> Fraction:
    """Return the decimal number that the user wrote, not the float nearest to it."""
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, found {value}.")
    return Fraction(repr(float(value)))
