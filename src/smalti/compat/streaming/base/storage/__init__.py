"""MosaicML's downloaders and uploaders of single files, as thin classes over the stores of `smalti.storage`.

Data sets do not use them: streams and writers have stores of their own. Read `download` first.
"""

from smalti.compat.streaming.base.storage import download, upload
from smalti.compat.streaming.base.storage.download import *  # noqa: F403 - the public names of both modules
from smalti.compat.streaming.base.storage.upload import *  # noqa: F403

__all__: list[str] = []
__all__ += download.__all__
__all__ += upload.__all__
