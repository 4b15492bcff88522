"""See the package."""


class BatchFeature(dict):
    """A name to import."""
