"""The rows about JPEG files that are decoded at a reduced scale: those of issue 21."""

from benchmarks.goals import at_least
from benchmarks.row import Entrant, Row

_FIGURES = ("images_per_s", "same_settings_ratio", "pillow_ratio", "floor_share", "mean_difference", "most_different")
_TORCH = "smalti, resized by torch"


def _reduced(key: str, title: str, goal: float | None, **options: int) -> Row:
    """Return a row; `tiles` photos side by side make an image larger, at the detail of a photo."""
    goals = () if goal is None else (at_least(goal),)
    return Row(
        f"decode-{key}", f"decode {title}: whole files by simplejpeg and the same resize / Smalti", "decode", "photos",
        "ratio", "x", (Entrant("smalti", "smalti", options), Entrant(_TORCH, "smalti", {**options, "torch": True})),
        {"smalti": goals, _TORCH: goals},
        more=_FIGURES, samples=1,
    )  # fmt: skip


DECODE_ROWS: tuple[Row, ...] = (
    _reduced("photos-96", "photos of 320 to 500 pixels to 96", None, size=96),
    _reduced("photos-224", "photos of 320 to 500 pixels to 224", None, size=224),
    _reduced("2x", "640 x 480 pixels to 224", 2, size=224, tiles=2),
    _reduced("3x", "960 x 720 pixels to 224", 2, size=224, tiles=3),
    _reduced("6x", "1920 x 1440 pixels to 224", 2, size=224, tiles=6),
    _reduced("9x", "2560 x 1920 pixels to 224", 2, size=224, tiles=8),
)
