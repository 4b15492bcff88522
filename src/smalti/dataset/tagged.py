"""Streams that were opened by a tag, and a state that was saved when the tag named another version."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from smalti.catalog import history
from smalti.cursor import Cursor
from smalti.errors import CursorError
from smalti.stream import OpenStreams, ShardSet, StreamOptions


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
