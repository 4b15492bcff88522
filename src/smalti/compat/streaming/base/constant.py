"""MosaicML's constants: names of its shared memory and lock files, and default times.

The engine has no named shared memory and no such lock files; the names are for code that imports them.
"""

LOCALS = "locals"
BARRIER = "barrier"
NEXT_EPOCH = "next_epoch"
CACHE_USAGE = "cache_usage"
SHARD_STATES = "shard_states"
SHARD_ACCESS_TIMES = "shard_access_times"
RESUME = "resume"
EPOCH_SHAPE = "epoch_shape"
EPOCH_DATA = "epoch_data"
SHM_TO_CLEAN = [
    LOCALS,
    BARRIER,
    NEXT_EPOCH,
    CACHE_USAGE,
    SHARD_STATES,
    SHARD_ACCESS_TIMES,
    RESUME,
    EPOCH_SHAPE,
    EPOCH_DATA,
]
"""All names of shared memory."""
BARRIER_FILELOCK = "barrier_filelock"
CACHE_FILELOCK = "cache_filelock"

TICK = 0.007
"""Polling interval for what other processes change, seconds."""
DEFAULT_TIMEOUT = 60.0
"""Time limit of a download, seconds."""
