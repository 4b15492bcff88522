"""An update of prepared images that is killed when it has put two parts; run as a program by test_prepared_vacuum.

killed_update <photos> <path of the versions>
"""

import os
import signal
import sys
from pathlib import Path

from smalti.storage import LocalStore
from tests.spark.prepared.preparer import Preparer


class Dying(LocalStore):
    """A folder that kills its process right after the second part is stored."""

    parts = 0

    def put_file(self, key, path):
        super().put_file(key, path)
        if key.endswith(".parquet"):
            Dying.parts += 1
            if Dying.parts == 2:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Preparer(Path(sys.argv[1]), Dying(Path(sys.argv[2]))).update()
