"""A store in which somebody comes in between."""

from smalti.testing import MemoryStore


class Meeting(MemoryStore):
    """Does something of the test's just before a compaction's version is put, once."""

    before = b'"compact"'
    """What the put has that it comes before."""
    meanwhile = None

    def put_if_absent(self, key, data):
        if self.before in data and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        super().put_if_absent(key, data)
