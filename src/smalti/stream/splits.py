"""Whether a set has splits that are read as one by mistake. Opens nothing."""

import warnings

from smalti.catalog import Manifest
from smalti.errors import MixedSplitsWarning

SPLIT_NAMES = frozenset(
    {
        "train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation", "holdout",
    }
)  # fmt: skip
"""Folders that are splits where no manifest says which are: parts that were merged have other names."""
_MOST_TOLD = 5
_warned: set[str] = set()


def splits_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the splits of a version, or of a plain set the folders of its shards that look like some."""
    if manifest.version or not len(manifest.shards):
        return manifest.partitions
    shards = manifest.shards
    # Those of a folder stand together: the first and last ones tell of two splits, and of most threes.
    names = [shards[place].raw.basename for place in (0, len(shards) // 2, -1)]
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    return tuple(folders) if SPLIT_NAMES.issuperset(folder.lower() for folder in folders) else ()


def warn_of_mixed_splits(manifest: Manifest, root: str) -> None:
    """Warn, once for each set, of one that has several splits and is opened without a choice among them."""
    splits = splits_of(manifest)
    if len(splits) < 2 or root in _warned:
        return
    _warned.add(root)
    told = ", ".join(map(repr, splits[:_MOST_TOLD])) + (", ..." if len(splits) > _MOST_TOLD else "")
    warnings.warn(
        f"{root} has the splits {told}, and is opened without `split`: samples of all of them are read as one, those "
        f"for validation too. Give split={splits[0]!r} or another one; to mix them on purpose, give a stream for each: "
        "streams=[Stream(remote=..., split=...), ...]",
        MixedSplitsWarning,
        stacklevel=2,
    )
