"""The place of a run: in this process, at its first cursor, and in saved states that a dataset should continue from.

Everything but `RunTracker` is pure, except `saved_versions`, which looks up the version that a state was saved with
where a tag has moved since.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smalti.catalog import history
from smalti.cursor import WINDOW, Cursor, MixedStream, Mixture, Weights, mapping
from smalti.dataset.order import DEFAULT_SEED, RunOrder, Sizes, describe_weights, epoch_size, window_plan
from smalti.errors import CursorError, WorldMismatch
from smalti.order import default_block_size, default_canonical_nodes
from smalti.stream import OpenStreams, ShardSet, StreamOptions, Version
from smalti.world import World

_OPEN_THE_SAME = "open the version and split that the state was saved with (`version=`, `split=`)"
_MUST_AGREE = {
    "data set digest": ("digest", _OPEN_THE_SAME),
    "split": ("split", _OPEN_THE_SAME),
    "epoch size": ("epoch_size", _OPEN_THE_SAME),
    "shuffle": ("shuffle", "give `shuffle={saved!r}`"),
    "order algorithm version": ("algorithm_version", "use the Smalti that saved it"),
}
"""By name in messages: the field that must be equal in a saved cursor and the dataset's, and the remedy."""
_RESTORED_OPTIONS = {
    "shuffle_seed": "seed",
    "num_canonical_nodes": "canonical_nodes",
    "shuffle_block_size": "block_size",
    "affinity": "affinity",
}
"""By option: the field that a saved cursor restores. An explicit choice must agree with it."""


def first_cursor(options: RunOrder, world: World, streams: list[MixedStream], sizes: Sizes) -> Cursor:
    """Return the start of a run's first epoch.

    `world` has the ranks that read different samples; `sizes`, of every stream, the samples of each of its shards.

    Raises:
        ValueError: the streams' weights contradict each other, or take nothing.
    """
    digest = streams[0].digest
    if len(streams) > 1:  # one digest for all streams
        facts = json.dumps([[stream.digest, stream.split] for stream in streams])
        digest = hashlib.sha256(facts.encode()).hexdigest()
    cursor = Cursor(
        epoch=0,
        samples=0,
        seed=options.seed,
        canonical_nodes=1,
        initial_hosts=world.num_hosts,
        digest=digest,
        split=streams[0].split if len(streams) == 1 else None,
        epoch_size=1,
        shuffle=options.shuffle,
        block_size=1,
        mixture=None if options.is_plain else options.mixture(streams),
        affinity=1.0 if options.affinity is None else float(options.affinity),
    )
    size = epoch_size(cursor, sizes)
    nodes = options.num_canonical_nodes or default_canonical_nodes(size)
    block = options.shuffle_block_size or default_block_size(nodes)
    return replace(cursor, epoch_size=size, canonical_nodes=nodes, block_size=block)


def at_epoch(cursor: Cursor, epoch: int, sizes: Sizes) -> Cursor:
    """Return the start of another epoch of the cursor's run."""
    start = replace(cursor, epoch=epoch, samples=0)
    return start if cursor.mixture is None else replace(start, epoch_size=epoch_size(start, sizes))


def saved_cursor(saved: Cursor, fresh: Cursor, options: RunOrder, *, sizes: Sizes) -> Cursor:
    """Return the cursor of a saved state (see `own_cursor`), once it was checked against the dataset.

    `fresh` is the first cursor of this dataset. With `change_weights`, the dataset's weights apply from the state's
    place on, if they differ. Options without an explicit choice are restored from the state.

    Raises:
        CursorError: the state belongs to another data set or order: it would silently continue in another order. The
            message names the first difference, with both values.
    """
    if saved.mixture is not None or fresh.mixture is not None:
        saved, fresh = _mixed(saved, fresh, options.change_weights, sizes)
    for what, (name, remedy) in _MUST_AGREE.items():
        _check(what, getattr(saved, name), getattr(fresh, name), remedy)
    for what, name in _RESTORED_OPTIONS.items():
        chosen, given = getattr(options, what, None), f"OrderOptions({what}={{saved!r}})"
        if what == "shuffle_seed":
            chosen, given = None if options.seed == DEFAULT_SEED else options.seed, f"{what}={{saved!r}}"
        restored = getattr(saved, name)
        _check(what, restored, restored if chosen is None else chosen, f"give `{given}`, or leave it out")
    return saved


def own_cursor(state: Any) -> Cursor:
    """Return the cursor of a saved state of a run in Smalti's own order.

    Raises:
        CursorError: the state is damaged; or MosaicML Streaming saved it, or an earlier Smalti in one of MosaicML's
            orders: the message names the class that continues it.
    """
    own = mapping(state).get("smalti")
    algorithm = own.get("algorithm") if isinstance(own, Mapping) else None
    if "smalti" in state and (algorithm == WINDOW or not isinstance(algorithm, str)):
        return Cursor.from_state(state)
    wrote = "MosaicML Streaming or something else wrote it" if algorithm is None else f"its order is {algorithm!r}"
    raise CursorError(
        f"saved state: {wrote}, and this dataset has Smalti's `window` order only. A run in one of "
        "MosaicML's orders continues under `from smalti.compat.streaming import StreamingDataset`, bit for bit: open "
        "the data set there with the options of the run (`shuffle_algo`, `shuffle_block_size`, `partition_algo`), "
        "and load this state. To begin its epoch anew in the `window` order, call `set_epoch` instead.",
        what="order",
        saved=algorithm,
        found=WINDOW,
    )


def changes_weights(saved: Cursor, cursor: Cursor) -> bool:
    """Return whether a run that continues from `saved` with `cursor` has other weights than the run that saved it."""
    return cursor.mixture is not None and (saved.mixture is None or saved.mixture.weights != cursor.mixture.weights)


def _mixed(saved: Cursor, fresh: Cursor, change_weights: bool, sizes: Sizes) -> tuple[Cursor, Cursor]:  # noqa: FBT001
    """Compare the mixtures of two cursors, and return both with the saved mixture and the weights that now apply.

    Raises:
        CursorError: the mixtures differ in something that cannot change.
    """
    then, now = _mixture_of(saved, fresh), _mixture_of(fresh, saved)
    remedy = "give the same streams (one that is to come later must be among them from the start, with weight 0)"
    _check("number of streams", len(then.streams), len(now.streams), remedy)
    for number, (one, other) in enumerate(zip(then.streams, now.streams, strict=True)):
        _check(f"digest of stream {number}", one.digest, other.digest, _OPEN_THE_SAME)
        _check(f"split of stream {number}", one.split, other.split, _OPEN_THE_SAME)
        _check(f"samples of stream {number}", one.samples, other.samples, _OPEN_THE_SAME)
    for name in ("sampling_method", "sampling_granularity", "batching_method"):
        _check(name, getattr(then, name), getattr(now, name), f"give `OrderOptions({name}={{saved!r}})`")
    _check("mixture version", then.version, now.version, "use the Smalti that saved it")
    weights, before = now.weights, then.weights
    changes = (before.values, before.epoch_size) != (weights.values, weights.epoch_size)
    if changes and not change_weights:
        old, new = describe_weights(before), describe_weights(weights)
        raise CursorError(
            f"cannot resume from this state: it was saved with weights {old}, and this dataset has {new}. To continue "
            f"with those of the run, give them; to continue from sample {saved.samples} of epoch {saved.epoch} with "
            "the new ones, give `order=OrderOptions(change_weights=True)`: the state then records the change.",
            what="weights",
            saved=old,
            found=new,
        )
    if changes:
        changed = Weights(saved.epoch, saved.samples, weights.values, weights.epoch_size)
        saved = replace(saved, mixture=then.changed(changed))
    merged = replace(saved, mixture=then) if saved.mixture is None else saved
    names = ("digest", "split", "algorithm", "algorithm_version", "shuffle")
    here = replace(_sized(merged, sizes, changes), **{name: getattr(fresh, name) for name in names})
    if not merged.samples:
        merged = replace(merged, epoch_size=here.epoch_size)
    return merged, here


def _sized(merged: Cursor, sizes: Sizes, changes: bool) -> Cursor:  # noqa: FBT001
    """Return the start of the cursor's epoch, once its mixture was checked to be readable from the cursor on.

    Raises:
        CursorError: it is not.
    """
    mixture = merged.mixture
    try:
        start = at_epoch(merged, merged.epoch, sizes)
        batched = mixture is not None and mixture.global_batch and mixture.batching_method != "random"
        if batched and 0 < merged.samples < start.epoch_size == merged.epoch_size:
            window_plan(merged, sizes).sample_ids(merged.samples, merged.samples + 1)
    except (ValueError, WorldMismatch) as fault:
        stream = fault.facts.get("stream") if isinstance(fault, WorldMismatch) else None
        if mixture is not None and changes and stream is not None:
            raise CursorError(
                f"weights cannot change to {describe_weights(mixture.weights)} at sample {merged.samples} of epoch "
                f"{merged.epoch}: the rest of that epoch keeps the batch of {mixture.global_batch} with which it was "
                f"begun, and in it stream {stream} would have no sample. Give that stream a larger weight, or 0; or "
                "continue with the weights of the state, and change them at the start of an epoch.",
                what="weights",
                stream=stream,
                global_batch=mixture.global_batch,
            ) from fault
        raise CursorError(
            f"cannot resume from this state with the weights and batches of its 'mixture': {fault}", key="mixture"
        ) from fault
    return start


def _mixture_of(cursor: Cursor, other: Cursor) -> Mixture:
    if cursor.mixture is not None:
        return cursor.mixture
    plain = RunOrder().mixture([MixedStream(cursor.digest, cursor.split, cursor.epoch_size)])
    # The batching method has no effect on one stream, and a plain data set has none to compare: take the other's.
    method = other.mixture
    return plain if method is None else replace(method, streams=plain.streams, history=plain.history)


def _check(what: str, saved: Any, found: Any, remedy: str) -> None:
    if saved != found:
        raise CursorError(
            f"cannot resume from this state: it was saved with {what} {saved!r}, and this dataset has {found!r}. To "
            f"continue that run, {remedy.format(saved=saved)}; to begin an epoch anew with what this dataset has, "
            "call `set_epoch` instead.",
            what=what,
            saved=saved,
            found=found,
        )


def saved_versions(declared: Sequence[StreamOptions], streams: OpenStreams, cursor: Cursor) -> tuple[Version, ...]:
    """Return the versions that a cursor was saved with, where a tag has moved since; else those that are opened.

    Raises:
        CursorError: the version that it was saved with no longer exists.
    """
    if all(each.tag is None for each in declared):
        return streams.versions
    saved = [cursor.digest] if cursor.mixture is None else [each.digest for each in cursor.mixture.streams]
    if len(saved) != len(streams.sets):
        return streams.versions
    versions = list(streams.versions)
    for number, (options, each, digest) in enumerate(zip(declared, streams.sets, saved, strict=True)):
        if options.tag is not None and each.manifest.digest != digest:
            versions[number] = _version_with_digest(options.tag, each, digest)
    return tuple(versions)


def _version_with_digest(tag: str, found: ShardSet, digest: str) -> Version:
    """Return the newest version with this digest, and warn that the tag has moved since the state was saved.

    Raises:
        CursorError: no version has it.
    """
    root, now = found.store.url, found.manifest
    for info in reversed(history(found.store)):
        if info.digest == digest and not info.is_expired:
            warnings.warn(
                f"tag {tag!r} of {root} was moved: it names version {now.version} now, and this state was saved with "
                f"the content of version {info.version}, which is read on. To begin with what the tag names now, load "
                "no state.",
                stacklevel=5,
            )
            return info.version, digest
    raise CursorError(
        f"cannot resume from this state: it was saved with data set digest {digest!r}; tag {tag!r} of {root} names "
        f"version {now.version} now, with digest {now.digest!r}, and no version that can be opened there has the "
        "former: a vacuum removed it, or the state is that of another data set. To begin an epoch anew with what the "
        "tag names now, call `set_epoch` instead.",
        what="data set digest",
        saved=digest,
        found=now.digest,
    )


@dataclass(frozen=True)
class RunPlace:
    """The place that the iterations of a dataset have reached. Immutable."""

    next_epoch: int = 0
    """Epoch of the next iteration, unless `resume` is given."""
    resume: Cursor | None = None
    """Start of the next iteration, after a state was loaded."""
    adopted: Cursor | None = None
    """The loaded state, whose seed, canonical nodes and block size apply to all following epochs."""
    begun: Cursor | None = None
    """Start of the latest iteration; None after a state was loaded or an epoch chosen."""
    versions: tuple[Version, ...] = ()
    """The version of each stream; empty before the first use."""

    def at_epoch(self, epoch: int) -> "RunPlace":
        """Return the place after the user chose an epoch."""
        return replace(self, next_epoch=epoch, resume=None, begun=None)

    def resumed(self, cursor: Cursor, versions: tuple[Version, ...]) -> "RunPlace":
        """Return the place after a state was loaded."""
        return replace(self, resume=cursor, adopted=cursor, begun=None, versions=versions)

    def after_begin(self, start: Cursor) -> "RunPlace":
        """Return the place after an iteration began at `start`."""
        return replace(self, next_epoch=start.epoch + 1, resume=None, begun=start)


class RunTracker:
    """The current place, shared by a dataset and the views that loaders make of it."""

    def __init__(self) -> None:
        self._place = RunPlace()

    def get(self) -> RunPlace:
        """Return the current place."""
        return self._place

    def set(self, place: RunPlace) -> None:
        """Replace the place by the user's choice."""
        self._place = place

    def enter(self) -> int | None:
        """Register an iteration that is about to begin; return its number, or None where no number is needed."""
        return None

    def begin(self, settle: Callable[[RunPlace], Cursor], number: int | None = None) -> tuple[Cursor, bool]:
        """Begin an iteration.

        `settle` returns the start of the iteration, given the place before it; `number` is what `enter` returned.

        Returns:
            Its start, and whether this call decided the start, rather than another worker of the same iteration.
        """
        del number
        start = settle(self._place)
        self._place = self._place.after_begin(start)
        return start, True

    def agree(self, versions: tuple[Version, ...]) -> tuple[Version, ...]:
        """Record the versions that were opened, and return those that were recorded first."""
        if not self._place.versions:
            self._place = replace(self._place, versions=versions)
        return self._place.versions


@dataclass
class OpenedOnce:
    """The opened streams, shared by a dataset and its views; the first use opens them."""

    stream: OpenStreams | None = None
