"""Test aids for stores: the contract of stores, a store with planted faults, a store that logs its calls.

Authors of stores copy `contract.py`, or run it from a clone; read it first. The fault store, a server, is
`tests.faultstore`.
"""

from tests.stores.contract import LargeStoreContract, ReadContract, StoreContract
from tests.stores.logged import LoggedStore
from tests.stores.memory import Call, Killed, MemoryStore

__all__ = ["Call", "Killed", "LargeStoreContract", "LoggedStore", "MemoryStore", "ReadContract", "StoreContract"]
