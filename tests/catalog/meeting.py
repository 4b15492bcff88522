"""A store in which somebody comes in between."""

from smalti.testing import MemoryStore


class Meeting(MemoryStore):
    """Does something of the test's just before a compaction's version is put, once."""

    meanwhile = None

    def put_if_absent(self, key, data):
        if b'"compact"' in data and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        super().put_if_absent(key, data)
