"""A Pipes session in a folder of a volume: the context for the cluster, and its messages, by the Files API.

The other end is `entry`, which has the volume mounted. A chunk of messages is a file with a number for its name.
"""

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster import PipesBlobStoreMessageReader, PipesContextInjector
from dagster_pipes import PipesBlobStoreMessageWriter, PipesContextData, PipesParams

from smalti.storage.databricks.api import FilesApi

LEASE = "lease"
"""Name of the file that the step renews while it runs; a job whose lease is not renewed ends itself."""

_log = logging.getLogger(__name__)


class SessionFolder:
    """The folder of one session. Thread-safe."""

    def __init__(self, files: FilesApi, path: str) -> None:
        self.path = path
        self._files = files
        self._renewals = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Make the folder, and remove it with all that is in it at the end, as far as possible."""
        self._files.make_folder(self.path)
        self.renew_lease()
        try:
            yield
        finally:
            try:
                self.remove()
            except OSError:
                _log.warning("could not remove %s; it can be removed by hand", self.path, exc_info=True)

    def write(self, name: str, text: str) -> str:
        """Write a file, and return its path."""
        path = f"{self.path}/{name}"
        self._files.write(path, text.encode(), overwrite=True)
        return path

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if there is none."""
        try:
            return self._files.read(f"{self.path}/{name}", 0, None).decode()
        except FileNotFoundError:
            return None

    def renew_lease(self) -> None:
        """Write the lease anew."""
        self._renewals += 1
        self.write(LEASE, str(self._renewals))

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        for entry in list(self._files.entries(self.path)):
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(entry["name"])
        self._files.remove_folder(self.path)


def remove_left(files: FilesApi, sessions: str, instance: dg.DagsterInstance) -> None:
    """Remove the folders of sessions whose Dagster run is over: their steps were killed.

    Args:
        files: of the workspace.
        sessions: the folder above all sessions, each of which begins with the id of its run.
        instance: the runs that it does not know are those of others.
    """
    try:
        for entry in list(files.entries(sessions)):
            run = instance.get_run_by_id(entry["name"].rpartition("/")[2].rpartition("-")[0])
            if run is not None and run.is_finished:
                SessionFolder(files, entry["name"]).remove()
    except OSError:  # there are none yet; or the next step removes them
        _log.debug("could not remove old sessions from %s", sessions, exc_info=True)


class VolumeContextInjector(PipesContextInjector):
    """Writes the context as a file of the session's folder."""

    def __init__(self, folder: SessionFolder) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def inject_context(self, context_data: PipesContextData) -> Iterator[PipesParams]:
        """Yield the parameters by which the job finds the context."""
        yield {"path": self._folder.write("context.json", json.dumps(context_data))}

    def no_messages_debug_text(self) -> str:
        """Return a hint for when there are no messages."""
        return f"The context is a file in {self._folder.path}; does the cluster have the volume mounted?"


class VolumeMessageReader(PipesBlobStoreMessageReader):
    """Reads the chunks of messages in the session's folder, all that are there whenever it looks."""

    def __init__(self, folder: SessionFolder, *, interval: float) -> None:
        super().__init__(interval=interval)
        self._folder = folder

    @property
    def expected_writer_count(self) -> int:
        """Return 1: the job is one process. Dagster's own property warns that it is in preview."""
        return 1

    @contextlib.contextmanager
    def get_params(self) -> Iterator[PipesParams]:
        """Yield the parameters by which the job finds the folder."""
        output = {PipesBlobStoreMessageWriter.INCLUDE_STDIO_IN_MESSAGES_KEY: False}  # it may hold anything
        yield {"path": self._folder.path, "interval": self.interval, **output}

    def messages_are_readable(self, params: PipesParams) -> bool:  # noqa: ARG002  Dagster's signature
        """Return True: the folder was made before the job."""
        return True

    def download_messages(self, cursor: Any, params: PipesParams) -> tuple[Any, str] | None:  # noqa: ARG002
        """Return all chunks that came since the last time.

        Dagster's own takes one each time; after an interruption it would not catch up before the session's end.
        """
        chunks = []
        while (chunk := self.download_messages_chunk(self.counter, params)) is not None:
            chunks.append(chunk)
            self.counter += 1
        return (self.counter, "\n".join(chunks)) if chunks else None

    def download_messages_chunk(self, index: int, params: PipesParams) -> str | None:  # noqa: ARG002
        """Return a chunk; None if it is not there yet, or not to its end, or cannot be read now."""
        try:
            chunk = self._folder.read(f"{index}.json")
        except OSError:
            _log.warning("could not read messages from %s; it is tried again", self._folder.path, exc_info=True)
            return None
        return chunk if chunk and _is_whole(chunk) else None

    def no_messages_debug_text(self) -> str:
        """Return a hint for when there are no messages."""
        return f"Messages are expected in {self._folder.path}; does the cluster have the volume mounted?"


def _is_whole(chunk: str) -> bool:
    """Return whether the last line is complete: a file may be seen while it is written."""
    try:
        json.loads(chunk.rpartition("\n")[2])
    except json.JSONDecodeError:
        return False
    return True


def outcome_of(messages: Any, call: int) -> dict[str, Any] | None:
    """Return the message that holds the result or error of a call; None if it has not arrived.

    An error that is of no call, because the program could not begin, is that of any.
    """
    return next((each for each in messages if isinstance(each, dict) and each.get("call") in {call, 0}), None)


def metadata_of(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of the error in a message."""
    trace = str(outcome["error"].get("traceback", ""))
    return {"traceback_on_the_cluster": dg.MetadataValue.md(f"```\n{trace}\n```")} if trace else {}
