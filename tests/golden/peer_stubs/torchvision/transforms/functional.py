"""See the top package."""


def to_tensor(image: object) -> object:
    """A name to import."""
    raise NotImplementedError
