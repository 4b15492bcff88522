"""MosaicML Streaming ("the peer"), run in a process of its own.

mosaicml-streaming 0.13 is expected in `<environment>/peer`, where `make setup` installs it, or in the interpreter that
`SMALTI_PEER_PYTHON` names; without either the tests are skipped, except in CI, where that is a failure. `peer_stubs`
replaces packages that MosaicML imports at start but does not need for reading.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.golden.values import decode
from tests.peer_program import fork_alone

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def peer():
    """Return an interpreter that has the peer, and the folders to search for it."""
    chosen = os.environ.get("SMALTI_PEER_PYTHON")
    if chosen:
        return Path(chosen), [HERE / "peer_stubs"]
    beside = Path(sys.prefix) / "peer"
    if not (beside / "streaming").is_dir():
        missing = f"needs MosaicML Streaming in {beside}: `make setup` lays it there (see {sys.prefix}/install.log)"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return Path(sys.executable), [HERE / "peer_stubs", beside]


def peer_reads(peer, folder, out, how):
    python, paths = peer
    fork_alone(python, paths, [HERE / "peer_read.py", folder, out, how])
    return [{name: decode(value) for name, value in row.items()} for row in json.loads(out.read_text())]
