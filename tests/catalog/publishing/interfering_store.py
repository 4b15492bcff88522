"""A store that runs a function of the test immediately before a version is put."""

from tests.stores import MemoryStore


class InterferingStore(MemoryStore):
    """A store that calls `interfere` once, before the put of a header that contains `before`."""

    before = b'"compact"'
    interfere = None

    def put_if_absent(self, key, data):
        if self.before in data and self.interfere is not None:
            interfere, self.interfere = self.interfere, None
            interfere()
        super().put_if_absent(key, data)
