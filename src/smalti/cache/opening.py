"""Mapping one shard's files so that they stay what was verified; knows no stores, locks or limits."""

from collections.abc import Callable, Sequence
from pathlib import Path

from smalti.cache.changes import States, are_changed, is_rewritten, states_of
from smalti.cache.folders import quarantine
from smalti.cache.verified import Verified
from smalti.cache.wanted import Wanted
from smalti.errors import ChecksumMismatch
from smalti.format import AnyShard


class Known:
    """What this process knows of the files of the shards that it has opened.

    Args:
        num_shards: Of the cache.
    """

    def __init__(self, num_shards: int) -> None:
        self.verified = Verified(num_shards)
        self._states: dict[int, States] = {}

    def states(self, shard_id: int) -> States:
        """Return the states in which the files of a shard were mapped; none for a shard that was not opened here."""
        return self._states.get(shard_id, ())

    def is_changed(self, shard_id: int) -> bool:
        """Return whether a file of an open shard was changed since it was mapped."""
        return are_changed(self._states.get(shard_id, ()))

    def add(self, shard_id: int, paths: Sequence[Path], states: States) -> None:
        """Record that these files hold the shard."""
        self.verified.add(shard_id, paths)
        self._states[shard_id] = states


class Opening:
    """The opening of one shard.

    Args:
        wanted: The shard.
        known: Of its cache; told of the files once they are mapped.
        open_files: Maps them, as `open_shard`.
        is_copied: Whether its files are copies, which are fetched again when they are wrong.
    """

    def __init__(
        self, wanted: Wanted, known: Known, open_files: Callable[[Sequence[Path]], AnyShard], *, is_copied: bool
    ) -> None:
        self._wanted, self._known = wanted, known
        self._open_files, self._is_copied = open_files, is_copied
        self._before: States = ()

    def trusted(self, paths: tuple[Path, ...]) -> bool:
        """Return whether these files were verified as the shard in this run, and did not change since.

        Raises:
            ChecksumMismatch: they are no copies, did change, and have no checksum by which to tell what they hold now.
            OSError: a file cannot be looked at.
        """
        number, verified = self._wanted.number, self._known.verified
        if not self._is_copied:
            self._before = states_of(paths)
        if not self._wanted.info.raw.hashes and verified.is_changed(number, paths):
            self._refuse_rewritten(paths)
        return verified.knows(number, paths)

    def use(self, paths: tuple[Path, ...]) -> AnyShard:
        """Map the files.

        Raises:
            ChecksumMismatch: they were changed while they were verified.
            FormatError: they are not the shard.
            OSError: a file cannot be opened.
        """
        shard = self._open_files(paths)
        states = states_of(paths)
        if self._before and states != self._before:
            raise self._changed(self._wanted.what)
        self._known.add(self._wanted.number, paths, states)
        return shard

    def explained(self, error: ChecksumMismatch) -> ChecksumMismatch:
        """Return the error to raise for files that do not verify: whether they did before, they were changed."""
        if self._is_copied or not self._known.states(self._wanted.number):
            return error
        return self._changed(error.message)

    def _refuse_rewritten(self, paths: tuple[Path, ...]) -> None:
        """Refuse a set that was changed; put a copy aside that was rewritten in place, so that it is fetched again."""
        if not self._is_copied:
            raise self._changed(f"{self._wanted.what}: it has no checksum")
        before = self._known.states(self._wanted.number)
        if before and is_rewritten(before, states_of(paths)):  # another file was fetched, by another process
            for path in paths:
                quarantine(path)

    def _changed(self, message: str) -> ChecksumMismatch:
        return ChecksumMismatch(
            f"{message}; the file was changed after this dataset had begun to read it. Do not write to a data set that "
            "is being read: publish a new version, and open a new dataset to read that",
            shard=self._wanted.number,
            key=self._wanted.info.raw.basename,
        )
