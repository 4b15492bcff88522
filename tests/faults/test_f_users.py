"""F5: jobs in separate containers, and users that may not read each other's files, with one cache folder."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.cached_sets import SAMPLES, Watch, copies, read_all, reader, remote_set
from tests.faults.test_f_bound import JOB
from tests.storage.test_process import in_fork

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.mark.slow
def test_f5_jobs_in_two_containers_share_a_folder_within_the_limit(tmp_path):
    """Each has its own mount and process namespaces, so that all are process 1 or 2; the folder is shared."""
    apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here: needs CAP_SYS_ADMIN")
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    with Watch(local) as watch:
        jobs = [
            subprocess.Popen(
                [*apart, sys.executable, "-c", JOB, str(remote), str(local), str(seed)],
                stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT}/src:{ROOT}"},
            )
            for seed in (1, 2)
        ]  # fmt: skip
        assert [job.communicate(timeout=500)[0] for job in jobs] == ["whole\n"] * 2
    assert 0 < watch.most <= 5000
    assert sum(copies(local).values()) <= 5000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_f5_two_users_have_a_folder_each_that_the_other_cannot_read():
    shared = Path(tempfile.mkdtemp(prefix="smalti-users-", dir="/tmp"))  # other users may not read pytest's folder
    shared.chmod(0o755)
    try:
        remote, local = remote_set(shared / "set"), shared / "cache"
        local.mkdir()
        local.chmod(0o1777)
        assert read_all(reader(remote, local, cache_limit=20000)) == list(range(SAMPLES))
        before = {path: path.stat().st_mtime_ns for path in copies(local)}

        def as_nobody():
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            found = read_all(reader(remote, local, cache_limit=20000))
            return found == list(range(SAMPLES))

        assert in_fork(as_nobody, seconds=280) == "True"
        [mine, theirs] = sorted(local.iterdir())
        assert theirs.name == f"{mine.name}.uid{NOBODY}"
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in (mine, theirs)] == [0o700] * 2
        assert [folder.stat().st_uid for folder in (mine, theirs)] == [0, NOBODY]
        assert {path: path.stat().st_mtime_ns for path in copies(mine)} == before
    finally:
        shutil.rmtree(shared)
