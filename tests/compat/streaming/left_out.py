"""The parts of MosaicML's interface that smalti.compat.streaming leaves out or has otherwise, each with its reason.

A key covers all that begins with it, such as a module or `module:Class`. Each entry must cover a difference.
"""

LEFT_OUT: dict[str, str] = {}

IN_WORK: tuple[str, ...] = ("instance", "streaming")
"""Parts that are not merged yet."""
