"""Public test aids for authors of stores: the store contract, a store with planted faults, a store that logs its calls.

The library itself never imports this package. The contracts need pytest and are imported on first use. Read
`contract.py` first.
"""

from typing import TYPE_CHECKING, Any

from smalti.testing.logged import LoggedStore
from smalti.testing.memory import Call, Killed, MemoryStore

if TYPE_CHECKING:
    from smalti.testing.contract import StoreContract
    from smalti.testing.large import LargeStoreContract
    from smalti.testing.reading import ReadContract

__all__ = ["Call", "Killed", "LargeStoreContract", "LoggedStore", "MemoryStore", "ReadContract", "StoreContract"]


def __getattr__(name: str) -> Any:
    if name == "StoreContract":
        from smalti.testing.contract import StoreContract

        return StoreContract
    if name == "LargeStoreContract":
        from smalti.testing.large import LargeStoreContract

        return LargeStoreContract
    if name == "ReadContract":
        from smalti.testing.reading import ReadContract

        return ReadContract
    raise AttributeError(name)
