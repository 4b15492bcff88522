"""The name of index files."""

__all__ = ["get_index_basename"]


def get_index_basename() -> str:
    """Return the name of the index file of a set."""
    return "index.json"
