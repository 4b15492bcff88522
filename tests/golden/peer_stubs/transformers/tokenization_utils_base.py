"""See the package."""


class BatchEncoding(dict):
    """A name to import."""
