"""PostgreSQL's own server, in a new folder; no root is needed, and as root it runs as `daemon`."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.nightly.openssh import RUNS_AS
from tests.nightly.programs import environment, find
from tests.storage.servers.process import run_server

PASSWORD = "p@ss:word/of?the-nightly"
"""Of the characters that an address would have to quote."""


@contextmanager
def postgres() -> Iterator[dict[str, str]]:
    """The variables of deploy/postgres/dagster.yaml for a server that is started here."""
    folder = Path(tempfile.mkdtemp(prefix="smalti-postgres-"))  # not pytest's, which only root could read
    who = {}
    try:
        (folder / "password").write_text(PASSWORD)
        if os.getuid() == 0:
            user = pwd.getpwnam(RUNS_AS)
            who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            for path in (folder, *folder.iterdir()):
                os.chown(path, user.pw_uid, user.pw_gid)
        argv = [find("initdb"), "-D", f"{folder}/data", "-U", "dagster", "-A", "scram-sha-256", "-N"]
        argv += [f"--pwfile={folder}/password", "--encoding=UTF8", "--locale=C"]
        done = subprocess.run(
            argv, env={**os.environ, **environment()}, cwd=folder, capture_output=True, text=True, check=False, **who
        )
        assert done.returncode == 0, done.stderr
        start = [find("postgres"), "-D", f"{folder}/data", "-k", str(folder), "-c", "listen_addresses=127.0.0.1"]
        with run_server(lambda port: [*start, "-p", str(port)], env=environment(), cwd=folder, **who) as port:
            yield {
                "DAGSTER_PG_HOST": "127.0.0.1",
                "DAGSTER_PG_PORT": str(port),
                "DAGSTER_PG_USERNAME": "dagster",
                "DAGSTER_PG_PASSWORD": PASSWORD,
                "DAGSTER_PG_DB": "postgres",
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
