"""See the package."""


class VisionDataset:
    """A name to import."""
