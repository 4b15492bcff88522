"""Public test aids for authors of stores: the store contract, a store with planted faults, a store that logs its calls.

The library itself never imports this package. The contracts need pytest and are imported on first use. Read
`contract.py` first.
"""

from typing import TYPE_CHECKING, Any

from smalti.testing.logged import LoggedStore
from smalti.testing.memory import Call, Killed, MemoryStore

if TYPE_CHECKING:
    from smalti.testing.contract import LargeStoreContract, ReadContract, StoreContract

__all__ = ["Call", "Killed", "LargeStoreContract", "LoggedStore", "MemoryStore", "ReadContract", "StoreContract"]


def __getattr__(name: str) -> Any:
    if name in {"LargeStoreContract", "ReadContract", "StoreContract"}:
        from smalti.testing import contract

        return getattr(contract, name)
    raise AttributeError(name)
