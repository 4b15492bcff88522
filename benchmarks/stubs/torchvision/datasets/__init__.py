"""The one name that MosaicML Streaming imports from here."""


class VisionDataset:
    """Never used."""
