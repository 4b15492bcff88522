"""A pure rule for whether a watched source counts as changed, given earlier observations; without Dagster and clock."""

import json
from dataclasses import asdict, dataclass, field, replace

from smalti.sources.image_folder import PartialListing

MAX_TRIES = 3
"""Runs that are requested for one content before a person is asked to look."""


@dataclass(frozen=True)
class WatchState:
    """State that a sensor keeps between its ticks."""

    requested: str = ""
    """Digest of the content that a run was last requested for; empty once the source was seen as it was last read."""
    tries: int = 0
    """Runs requested for the content `requested`, one after the other."""
    seen: str = ""
    """Digest of a change that is being waited on."""
    since: float = 0.0
    """Time at which that change was first seen, in seconds."""
    messages: str = ""
    """Digest of the messages of a queue that no run has followed yet; empty if there are none."""
    listing: PartialListing = field(default_factory=PartialListing)
    """The part of a paged listing that is done."""

    def to_cursor(self) -> str:
        """Return the text that Dagster keeps for the sensor, and shows: without what is as at the start."""
        fresh = asdict(WatchState())
        return json.dumps({name: value for name, value in asdict(self).items() if value != fresh[name]})

    @classmethod
    def from_cursor(cls, text: str | None) -> "WatchState":
        """Return what `to_cursor` wrote; a fresh start for none, or for one that a person edited."""
        try:
            values = json.loads(text or "{}")
            return cls(**{**values, "listing": PartialListing(**values.get("listing", {}))})
        except (ValueError, TypeError, AttributeError):
            return cls()


@dataclass(frozen=True)
class Verdict:
    """The decision about a content that was seen."""

    watch: WatchState
    reason: str
    is_due: bool = False
    """True if a run is due."""


def judge(
    watch: WatchState,
    digest: str,
    *,
    known: str,
    running: str,
    now: float,
    quiet_seconds: float,
    is_held: bool = True,
) -> Verdict:
    """Decide whether the content `digest` needs a run: the shards do not hold it, no run is about to, and it is quiet.

    A content whose run ended before its shards were written is requested again, `MAX_TRIES` times in all.

    Args:
        watch: what was remembered at the last look.
        digest: of the content now.
        known: digest of the content that was last read.
        running: ID of a run that may read the source and has not ended yet; empty if there is none.
        now: the present, in the clock of `watch.since`.
        quiet_seconds: how long a new content must stay the same; an upload in progress changes it all the time.
        is_held: true if the shards hold the content that was last read.
    """
    short = digest[:12]
    if digest == known and is_held:
        # Forget the request: its run may read what is there now, and then a change back is a new one.
        forgotten = replace(watch, requested="", tries=0, seen="", since=0.0)
        return Verdict(forgotten, f"nothing changed: the content is still {short}")
    tries = watch.tries if digest == watch.requested else 0
    if tries and running:
        return Verdict(replace(watch, seen=""), f"content {short} was requested, and run {running} has not ended yet")
    if tries >= MAX_TRIES:
        return Verdict(
            replace(watch, seen=""),
            f"content {short} was requested {tries} times, and the shards do not hold it: look at the last run, "
            "correct the cause, then re-execute it or reset this sensor's cursor",
        )
    if digest != watch.seen:
        news = f"the content changed from {known[:12]} to {short}"
        if digest == known:
            news = f"content {short} was read, and the shards do not hold it"
        return Verdict(
            replace(watch, seen=digest, since=now), f"{news}: waiting until it is quiet for {quiet_seconds:g} s"
        )
    if (quiet := now - watch.since) < quiet_seconds:
        return Verdict(watch, f"content {short} has been quiet for {quiet:.0f} of {quiet_seconds:g} s")
    if running:
        return Verdict(watch, f"content {short} is new and quiet, but run {running}, which may read it, has not ended")
    launched = replace(watch, requested=digest, tries=tries + 1, seen="", since=0.0)
    return Verdict(launched, f"content {short} is new and quiet", is_due=True)
