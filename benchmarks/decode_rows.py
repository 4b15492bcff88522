"""The rows about JPEG files: decoded at a reduced scale (issue 21), and on their way to training batches (issue 35)."""

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

_UINT8, _AUGMENTED = "smalti to uint8", "smalti, augmented"
_FOLDER, _DECODE = "folder with Pillow", "decode"


def _images(key: str, title: str, times_folder: float, workers: int, **options: bool) -> Row:
    """Return a row from files to normalised batches of 224 x 224; `decode` gives pixels as they are decoded."""
    given = {"workers": workers, **options}
    goals = {
        "smalti": (at_least(times_folder, _FOLDER), at_least(0.8, _DECODE)),
        _AUGMENTED: (at_least(0.7, _DECODE),),
    }
    entrants = (
        Entrant("smalti", "smalti", given), Entrant(_UINT8, "smalti", {**given, "as_floats": False}),
        Entrant(_AUGMENTED, "smalti", {**given, "augment": True}),
        Entrant(_FOLDER, "folder", given), Entrant(f"{_FOLDER}, augmented", "folder", {**given, "augment": True}),
        Entrant("mosaicml", "mosaicml", given), Entrant("spdl", "spdl", given), Entrant(_DECODE, "decode", given),
    )  # fmt: skip
    return Row(
        f"images-{key}-{workers}w", f"{title} to normalised batches of 224 x 224, {workers} workers", "images",
        "photos", "images_per_s", "images/s", entrants, goals, _DECODE, more=("images_per_cpu_s",), samples=1,
    )  # fmt: skip


IMAGE_ROWS: tuple[Row, ...] = (
    *(_images("small", "photos of 320 to 500 pixels", 1.8, workers) for workers in (0, 1, 2)),
    *(_images("large", "photos of 1600 x 1200 pixels", 3, workers, large=True) for workers in (0, 1, 2)),
)
