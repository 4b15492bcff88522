"""Aids for tests, public: a store with planted faults, a store that logs its calls, and the contract of stores.

Nothing in the library imports this. `StoreContract` needs pytest and is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from smalti.testing.logged import LoggedStore
from smalti.testing.memory import Call, Killed, MemoryStore

if TYPE_CHECKING:
    from smalti.testing.contract import StoreContract

__all__ = ["Call", "Killed", "LoggedStore", "MemoryStore", "StoreContract"]


def __getattr__(name: str) -> Any:
    if name == "StoreContract":
        from smalti.testing.contract import StoreContract

        return StoreContract
    raise AttributeError(name)
