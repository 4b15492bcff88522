"""The one name that MosaicML Streaming imports from here."""

from typing import Any


def to_tensor(image: Any) -> Any:
    """Never called by a measured path.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("benchmarks/stubs/torchvision stands in for torchvision and can only be imported")
