"""See the top package."""


class AutoTokenizer:
    """A name to import."""
