"""Publishing what was made from one version, as long as the newest one shows the same."""

from smalti.catalog import Draft, Manifest
from smalti.catalog.publishing import check_target, replace_content
from smalti.storage import Store


def publish_from(store: Store, base: Manifest, draft: Draft, *, operation: str) -> Manifest:
    """The new version that holds the draft's shards, made from `base`.

    Versions that show the same as `base` may have come in between: a vacuum makes such ones.

    Raises:
        CommitConflict: the newest version shows something else; nothing of ours is visible.
        Otherwise: as for `catalog.publish`.
    """
    newest = check_target(store, "overwrite", write_id=draft.write_id).header
    shown = (base.digest, list(base.sidecars), dict(base.logical))
    same = newest is not None and (newest.digest, list(newest.sidecars), dict(newest.logical)) == shown
    based_on = newest.version if newest is not None and same else base.version
    return replace_content(store, draft, based_on=based_on, operation=operation)
