"""The preflight: a check on the driver, before any rank is started, that the ranks will reach the data and the run.

Ranks on this machine have its environment and its files, so this process checks for them. Spark's executors on other
machines have only what is sent to them, the storage options and the stores' variables: a child process that has nothing
else checks for those. Run as a program, this module is that child, whose task comes on standard input.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from smalti.catalog import load_manifest
from smalti.errors import SmaltiError, StoreError, TrainingError
from smalti.process import is_connect
from smalti.redaction import redact_address
from smalti.storage import open_store
from smalti.storage.errors import is_transient
from smalti.storage.schemes import store_variables
from smalti.storage.store import put_own
from smalti.torch.train.config import LAUNCHERS, RunConfig
from smalti.torch.train.run.store import newest_checkpoint

_SECONDS = 180.0  # longest wait for the child process
_HEADER_BYTES = 64  # of a shard, that are read
_SYSTEM_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Variables that the administrator of a machine sets; those of an executor are taken to be like the driver's."""


def check_places(config: RunConfig) -> None:
    """Check that the ranks will be able to read the data and to write the run.

    Raises:
        TrainingError: they will not; the message says which place, and what to do.
    """
    if LAUNCHERS[config.launcher].free_slots is not None and _has_remote_executors():
        check_as_executor(config)
    else:
        _check_here(config)


def _check_here(config: RunConfig) -> None:
    """Read the manifest and the first bytes of a shard; put a small object into the run's folder and remove it."""
    if config.data:
        with _explained("read the data", config.data):
            store = open_store(config.data, config.storage_options)
            manifest = load_manifest(store, version=config.version)
            # A run that continues keeps its version, which may be older than the newest.
            is_wrong = bool(config.digest) and manifest.digest != config.digest
            if is_wrong and (config.version is not None or newest_checkpoint(config) is None):
                raise TrainingError(
                    f"version {manifest.version} has digest {manifest.digest}, expected {config.digest}: pin the "
                    "version that has this digest, or leave `digest` out",
                    expected=config.digest,
                    found=manifest.digest,
                )
            for shard in manifest.shards[:1]:
                store.get_range(shard.stored.basename, 0, min(_HEADER_BYTES, shard.stored.num_bytes))
    with _explained("write the run", config.run_dir):
        run = open_store(config.local_run_dir or config.run_dir, config.run_dir_options)
        key = f".preflight-{secrets.token_hex(8)}"
        # Runs in stores depend on puts that succeed once, which some mounts cannot do.
        put = run.put if config.local_run_dir is not None else run.put_if_absent
        put_own(run, key, b"smalti", partial(put, key, b"smalti"))
        with contextlib.suppress(StoreError):  # a user may be allowed to write only
            run.delete(key)


@contextlib.contextmanager
def _explained(what: str, address: str) -> Any:
    try:
        yield
    except SmaltiError as error:
        raise TrainingError(
            f"nothing was started: the ranks could not {what}, {redact_address(address)}: {error}",
            place=redact_address(address),
            **({"is_transient": True} if is_transient(error) else {}),
        ) from error


def check_as_executor(config: RunConfig) -> None:
    """Check the same in a child process that has only what is sent to an executor on another machine.

    Raises:
        TrainingError: as `check_places`; the message also says what is sent.
    """
    carried = store_variables(os.environ)
    home_files = {name for name, value in carried.items() if Path(value).is_relative_to(Path.home())}
    carried = {name: value for name, value in carried.items() if name not in home_files}
    environment = {name: os.environ[name] for name in _SYSTEM_VARIABLES if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), **carried}
    whole = config.to_json()
    task = {field.name: whole[field.name] for field in fields(RunConfig)}
    with tempfile.TemporaryDirectory(prefix="smalti-preflight-") as home:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "smalti.torch.train.launchers.preflight"],
                input=json.dumps(task),
                env={**environment, "HOME": home},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TrainingError(
                f"nothing was started: {redact_address(config.data)} and {redact_address(config.run_dir)} did not "
                f"answer the preflight within {_SECONDS:.0f} s; check the network between this machine and the stores.",
                is_transient=True,
            ) from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise TrainingError(
            f"nothing was started: the preflight ended with exit code {done.returncode} and no answer: "
            f"{done.stderr[-2000:] or '(it wrote nothing)'}"
        ) from error
    if answer["problem"]:
        sent = ", ".join(sorted(carried)) or "none"
        raise TrainingError(
            f"{answer['problem']}\nThis was tried with what Spark's executors will have: the storage options, and the "
            f"stores' variables of this process ({sent}). They have no files of this machine, such as ~/.aws or "
            "~/.databrickscfg, and no login of a notebook: give the credentials as `storage_options` and "
            "`run_storage_options`, or set the variables before the call. If the executors have credentials of their "
            "own, use `preflight=False`.",
            **({"is_transient": True} if answer["is_transient"] else {}),
        )


def _has_remote_executors() -> bool:
    """Return whether the active Spark session has executors on other machines."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return False  # the launcher says what is missing
    session: Any = SparkSession.getActiveSession()
    if session is None:
        return False  # the launcher starts a local one
    return is_connect(session) or not session.sparkContext.master.startswith("local")


def _main() -> None:
    answer: dict[str, Any] = {"problem": "", "is_transient": False}
    try:
        _check_here(RunConfig.from_json(json.loads(sys.stdin.read())))
    except SmaltiError as error:
        answer = {"problem": str(error), "is_transient": is_transient(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main()
