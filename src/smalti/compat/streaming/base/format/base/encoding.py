"""The check of a value's type that the encodings of all formats share."""


def check_type(value: object, expected: type | tuple[type, ...]) -> None:
    """Check that a value to encode is of a type, or of one of several.

    Raises:
        AttributeError: it is not; MosaicML raises this class.
    """
    if not isinstance(value, expected):
        raise AttributeError(  # noqa: TRY004 - MosaicML's class
            f"data should be of type {expected}, but instead, found as {type(value)}"
        )
