"""One program of MosaicML's at a time: their names in shared memory clash when two begin at once.

The lock is the machine's, and is let go when the program ends; what it starts itself does not wait for it.
"""

import fcntl
import os
import tempfile

_HELD = "SMALTI_PEER_IS_ALONE"

if _HELD not in os.environ:
    _lock = open(os.path.join(tempfile.gettempdir(), f"smalti-peer-{os.getuid()}.lock"), "w")  # noqa: SIM115
    fcntl.flock(_lock, fcntl.LOCK_EX)  # whoever started us waits for us no longer than a test may take
    os.environ[_HELD] = "1"
