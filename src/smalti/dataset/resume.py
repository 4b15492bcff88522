"""The first cursor of a run, and saved ones: what must be as it was, what is taken over, and what may change.

Pure: a cursor is compared with the dataset that should continue from it, and nothing is read.

Streams that were opened by a tag, and a state that was saved when the tag named another version.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from smalti.catalog import history
from smalti.cursor import ORDER_VERSIONS, WINDOW, Cursor, MixedStream, Mixture, Weights
from smalti.dataset.order import (
    MixingOptions,
    OrderOptions,
    Sizes,
    digest_of,
    epoch_size,
    plain_mixture,
    told,
    window_plan,
)
from smalti.errors import CursorError, WorldMismatch
from smalti.order import default_block_size, default_canonical_nodes
from smalti.order.mosaic import SHUFFLES, MosaicOptions, default_mosaic_nodes
from smalti.stream import OpenStreams, ShardSet, StreamOptions
from smalti.world import World

ALGORITHMS = (WINDOW, *SHUFFLES)
_OPEN_THE_SAME = "open the version and split that the state was saved with (`version=`, `split=`)"
_MUST_AGREE = {
    "data set digest": ("digest", _OPEN_THE_SAME),
    "split": ("split", _OPEN_THE_SAME),
    "epoch size": ("epoch_size", _OPEN_THE_SAME),
    "shuffle": ("shuffle", "give `shuffle={saved!r}`"),
    "order algorithm": ("algorithm", "give `shuffle_algo={saved!r}`"),
    "order algorithm version": ("algorithm_version", "use the Smalti that saved it"),
}
"""What a saved cursor and the dataset have in common, as messages name it: the cursor's field, and what to do."""
_MAY_BE_ASKED = {"shuffle_seed": "seed", "num_canonical_nodes": "canonical_nodes", "shuffle_block_size": "block_size"}
"""What is taken over from a saved cursor unless the user asked for it, and the field of both."""


def first_cursor(
    options: OrderOptions, world: World, streams: list[MixedStream], sizes: Sizes, mixing: MixingOptions | None = None
) -> Cursor:
    """The start of a run's first epoch.

    Args:
        options: what the user chose about the order.
        world: those who read different samples.
        streams: what is read.
        sizes: of every stream, the samples of each of its shards.
        mixing: what the user chose about the streams.

    Raises:
        ValueError: the streams' weights contradict each other, or take nothing.
    """
    mixture = None if mixing is None or mixing.is_plain else mixing.mixture(streams)
    cursor = Cursor(
        epoch=0,
        samples=0,
        seed=options.seed,
        canonical_nodes=1,
        initial_hosts=world.num_hosts,
        digest=digest_of(streams),
        split=streams[0].split if len(streams) == 1 else None,
        epoch_size=1,
        shuffle=options.shuffle,
        block_size=1,
        algorithm=options.algorithm,
        algorithm_version=ORDER_VERSIONS.get(options.algorithm, 1),
        mixture=mixture,
    )
    size = epoch_size(cursor, sizes)
    if options.algorithm == WINDOW:
        nodes = options.canonical_nodes or default_canonical_nodes(size)
    else:
        nodes = options.canonical_nodes or default_mosaic_nodes(options.algorithm, world.num_hosts)
    block = options.block_size or default_block(options.algorithm, nodes)
    return replace(cursor, epoch_size=size, canonical_nodes=nodes, block_size=block)


def at_epoch(cursor: Cursor, epoch: int, sizes: Sizes) -> Cursor:
    """The start of another epoch of the cursor's run."""
    start = replace(cursor, epoch=epoch, samples=0)
    return start if cursor.mixture is None else replace(start, epoch_size=epoch_size(start, sizes))


def default_block(algorithm: str, canonical_nodes: int) -> int:
    """Samples within which an order shuffles, where nobody chose."""
    if algorithm == WINDOW:
        return default_block_size(canonical_nodes)
    return MosaicOptions(canonical_nodes).shuffle_block


def saved_cursor(
    state: Any, fresh: Cursor, options: OrderOptions, *, num_ranks: int, sizes: Sizes, change_weights: bool = False
) -> Cursor:
    """The cursor of a saved state, ours or MosaicML's, to be continued with `options`.

    Args:
        state: what `state_dict` returned.
        fresh: the first cursor of the dataset at hand.
        options: what the user chose.
        num_ranks: ranks that read different samples.
        sizes: of every stream, the samples of each of its shards.
        change_weights: whether the dataset's weights hold from the state's place on, if they are others.

    Raises:
        CursorError: it is damaged, or belongs to another data set or order.
    """
    if isinstance(state, Mapping) and "smalti" not in state:
        saved = Cursor.from_mosaic_state(state, fresh, num_ranks=num_ranks)
        block = options.block_size or default_block(options.algorithm, saved.canonical_nodes)
        saved = replace(saved, block_size=block)
    else:
        saved = Cursor.from_state(state)
    if saved.algorithm == "py1e" and saved.canonical_nodes > saved.epoch_size:
        raise CursorError(
            f"saved state: 'num_canonical_nodes' is {saved.canonical_nodes}, and an epoch of this data set has only "
            f"{saved.epoch_size} samples: `py1e` needs one for each. Open the data set that the run read.",
            key="num_canonical_nodes",
        )
    if saved.mixture is not None or fresh.mixture is not None:
        saved, fresh = _mixed(saved, fresh, change_weights, sizes)
    check_same_order(saved, fresh, options)
    return saved


def changes_weights(state: Any, cursor: Cursor) -> bool:
    """Return whether a run that continues from `state` with `cursor` has other weights than the run that saved it."""
    if cursor.mixture is None or not isinstance(state, Mapping) or "smalti" not in state:
        return False
    then = Cursor.from_state(state).mixture
    return then is None or then.weights != cursor.mixture.weights


def check_same_order(saved: Cursor, here: Cursor, options: OrderOptions) -> None:
    """Refuses a cursor that would silently continue in another order.

    Args:
        saved: the cursor to continue from.
        here: a fresh one of the dataset, for the same epoch.
        options: what the user asked for; what was not asked for is taken over from the saved run.

    Raises:
        CursorError: they differ; the message names the first difference, with both sides.
    """
    for what, (name, remedy) in _MUST_AGREE.items():
        _check(what, getattr(saved, name), getattr(here, name), remedy)
    for what, name in _MAY_BE_ASKED.items():
        asked, then = options.asked(name), getattr(saved, name)
        _check(what, then, then if asked is None else asked, f"give `{what}={{saved!r}}`, or leave it out")


def _mixed(saved: Cursor, fresh: Cursor, change_weights: bool, sizes: Sizes) -> tuple[Cursor, Cursor]:  # noqa: FBT001
    """Both cursors, with the saved run's mixture and what may change of it, once the mixtures were compared."""
    then, now = _mixture_of(saved, fresh), _mixture_of(fresh, saved)
    remedy = "give the same streams (one that is to come later must be among them from the start, with weight 0)"
    _check("number of streams", len(then.streams), len(now.streams), remedy)
    for number, (one, other) in enumerate(zip(then.streams, now.streams, strict=True)):
        _check(f"digest of stream {number}", one.digest, other.digest, _OPEN_THE_SAME)
        _check(f"split of stream {number}", one.split, other.split, _OPEN_THE_SAME)
        _check(f"samples of stream {number}", one.samples, other.samples, _OPEN_THE_SAME)
    for name in ("sampling_method", "sampling_granularity", "batching_method"):
        _check(name, getattr(then, name), getattr(now, name), f"give `{name}={{saved!r}}`")
    _check("mixture version", then.version, now.version, "use the Smalti that saved it")
    changes = _amounts(then.weights) != _amounts(now.weights)
    if changes:
        saved = _reweighted(saved, then, now.weights, change_weights)
    merged = replace(saved, mixture=then) if saved.mixture is None else saved
    names = ("digest", "split", "algorithm", "algorithm_version", "shuffle")
    here = replace(_sized(merged, sizes, changes), **{name: getattr(fresh, name) for name in names})
    if not merged.samples:
        merged = replace(merged, epoch_size=here.epoch_size)
    return merged, here


def _sized(merged: Cursor, sizes: Sizes, changes: bool) -> Cursor:  # noqa: FBT001
    """The start of the cursor's epoch, once the mixture was found to be one that can be read on from its place."""
    mixture = merged.mixture
    try:
        start = at_epoch(merged, merged.epoch, sizes)
        batched = mixture is not None and mixture.global_batch and mixture.batching_method != "random"
        if batched and merged.algorithm == WINDOW and 0 < merged.samples < start.epoch_size == merged.epoch_size:
            window_plan(merged, sizes).sample_ids(merged.samples, merged.samples + 1)
    except (ValueError, WorldMismatch) as fault:
        stream = fault.facts.get("stream") if isinstance(fault, WorldMismatch) else None
        if mixture is not None and changes and stream is not None:
            raise CursorError(
                f"weights cannot change to {told(mixture.weights)} at sample {merged.samples} of epoch {merged.epoch}: "
                f"the rest of that epoch keeps the batch of {mixture.global_batch} with which it was begun, and in it "
                f"stream {stream} would have no sample. Give that stream a larger weight, or 0; or "
                "go on with the weights of the state, and change them at the start of an epoch.",
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
    plain = plain_mixture(MixedStream(cursor.digest, cursor.split, cursor.epoch_size))
    # Batches of one stream are its own order, whatever the method: nobody chose one for a plain data set.
    chosen = other.mixture
    return plain if chosen is None else replace(chosen, streams=plain.streams, history=plain.history)


def _amounts(weights: Weights) -> tuple[Any, ...]:
    return weights.values, weights.epoch_size


def _reweighted(saved: Cursor, then: Mixture, weights: Weights, change_weights: bool) -> Cursor:  # noqa: FBT001
    """The saved cursor with the dataset's weights from its place on, if the user wants that."""
    if not change_weights:
        raise CursorError(
            f"cannot resume from this state: it was saved with weights {told(then.weights)}, and this dataset has "
            f"{told(weights)}. To go on with those of the run, give them; to go on from sample {saved.samples} of "
            f"epoch {saved.epoch} with the new ones, give `change_weights=True`: the state then records the change.",
            what="weights",
            saved=told(then.weights),
            found=told(weights),
        )
    if saved.algorithm != WINDOW:
        raise CursorError(
            f"weights cannot change in MosaicML's order {saved.algorithm!r}, which is planned for an epoch as a whole. "
            "Call `set_epoch` to begin one with the new weights, or use the `window` order.",
            what="weights",
        )
    changed = Weights(saved.epoch, saved.samples, weights.values, weights.epoch_size)
    return replace(saved, mixture=then.changed(changed))


def _check(what: str, saved: Any, found: Any, remedy: str) -> None:
    if saved != found:
        raise CursorError(
            f"cannot resume from this state: it was saved with {what} {saved!r}, and this dataset has {found!r}. To go "
            f"on with that run, {remedy.format(saved=saved)}; to begin an epoch anew with what this dataset has, "
            "call `set_epoch` instead.",
            what=what,
            saved=saved,
            found=found,
        )


def as_saved(
    declared: Sequence[StreamOptions], streams: OpenStreams, state: Any, cache_limit: int | None
) -> OpenStreams:
    """The streams in the versions that a state was saved with, where a tag has moved since; else those given.

    Args:
        declared: What was asked for, stream by stream: those without a tag stay as they are.
        streams: As they were opened, and not read yet; closed if others are returned.
        state: Any saved one; MosaicML's name no version.
        cache_limit: As for `OpenStreams`.

    Raises:
        CursorError: The state is damaged, or there is no version any more with what it was saved with.
    """
    saved = _digests(state)
    if len(saved) != len(streams.sets) or all(each.tag is None for each in declared):
        return streams
    versions = [
        each.manifest.version if asked.tag is None or each.manifest.digest == digest else _then(asked.tag, each, digest)
        for asked, each, digest in zip(declared, streams.sets, saved, strict=True)
    ]
    if versions == [each.manifest.version for each in streams.sets]:
        return streams
    options = [
        each.options if version == each.manifest.version else replace(each.options, version=version, tag=None)
        for version, each in zip(versions, streams.sets, strict=True)
    ]
    opened = OpenStreams(options, cache_limit)
    streams.close()
    return opened


def _digests(state: Any) -> list[str]:
    """Of each stream, what the state was saved with; none where it does not say."""
    if not isinstance(state, Mapping) or "smalti" not in state:
        return []
    saved = Cursor.from_state(state)
    return [saved.digest] if saved.mixture is None else [each.digest for each in saved.mixture.streams]


def _then(tag: str, found: ShardSet, digest: str) -> int:
    """The newest version with this content, which the tag meant when the state was saved; says that it has moved."""
    root, now = found.store.url, found.manifest
    for info in reversed(history(found.store)):
        if info.digest == digest and not info.is_expired:
            warnings.warn(
                f"tag {tag!r} of {root} was moved: it names version {now.version} now, and this state was saved with "
                f"the content of version {info.version}, which is read on. To begin with what the tag names now, load "
                "no state.",
                stacklevel=5,
            )
            return info.version
    raise CursorError(
        f"cannot resume from this state: it was saved with data set digest {digest!r}; tag {tag!r} of {root} names "
        f"version {now.version} now, with digest {now.digest!r}, and no version that can be opened there has the "
        "former: a vacuum removed it, or the state is that of another data set. To begin an epoch anew with what the "
        "tag names now, call `set_epoch` instead.",
        what="data set digest",
        saved=digest,
        found=now.digest,
    )
