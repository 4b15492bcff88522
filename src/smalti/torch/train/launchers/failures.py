"""Kinds of failures of ranks: which of them can be mended by a restart, and which one caused the others."""

from smalti.errors import StoreError, TrainingError
from smalti.storage.errors import is_transient
from smalti.torch.train.ranks import has_lost_rank

STOPPED, SUPERSEDED, OUTAGE, LOST, OWN = "stopped", "superseded", "outage", "lost", "own"
"""Kinds of failures of a rank: a signal stopped it, it continues elsewhere, a store did not answer, another rank did
not answer, or an exception of its own."""


def kind_of(error: BaseException) -> str:
    """Return the kind of failure that an exception of a rank is."""
    facts = error.facts if isinstance(error, TrainingError) else {}
    if facts.get("stopped"):
        return STOPPED
    if facts.get("is_orphaned"):
        return LOST
    if facts.get("is_superseded"):
        return SUPERSEDED
    if isinstance(error, StoreError) and is_transient(error):
        return OUTAGE
    return LOST if has_lost_rank(error) else OWN
