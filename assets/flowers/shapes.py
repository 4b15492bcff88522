"""Petals and leaves of the drawn flowers as arrays of points, and the canvas that they are drawn on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Points: TypeAlias = npt.NDArray[np.float64]
Color: TypeAlias = Sequence[float]


@dataclass(frozen=True)
class Petal:
    """One petal's outline, base at the origin, pointing along +x, one unit long."""

    breadth: float
    """Greatest width over length."""
    fullest: float = 0.6
    """Place along the petal at which it is widest, 0 at the base to 1 at the tip."""
    point: float = 0.5
    """Tip: 0.3 is blunt, 1 is pointed."""

    def outline(self, steps: int = 7) -> Points:
        """Points around the petal, shape (2 * steps, 2)."""
        along = np.linspace(0.0, 1.0, steps)
        rise = np.sin(np.pi / 2 * np.minimum(along / self.fullest, 1.0)) ** 0.8
        fall = np.clip((1 - along) / (1 - self.fullest), 0.0, 1.0) ** self.point
        half = self.breadth / 2 * np.minimum(rise, fall)
        return np.concatenate([np.stack([along, half], 1), np.stack([along, -half], 1)[::-1]])


@dataclass(frozen=True)
class Pose:
    """Position and view of a bloom."""

    x: float
    y: float
    radius: float
    tilt: float = 1.0
    """Foreshortening of the disc: 1 seen from above, 0.4 from the side."""
    lean: float = 0.0
    """Direction of the foreshortening in radians."""

    def place(self, points: Points) -> Points:
        """Unit points (..., 2) of a disc of radius 1 as pixels."""
        cos, sin = np.cos(self.lean), np.sin(self.lean)
        turn = np.array([[cos, -sin], [sin, cos]])
        matrix = turn @ np.diag([1.0, self.tilt]) @ turn.T * self.radius
        placed: Points = points @ matrix.T + (self.x, self.y)
        return placed


def fan(outline: Points, angles: Points, lengths: Points, inner: float = 0.0) -> Points:
    """One outline repeated around a centre: (petals, points, 2); bases stand `inner` away from the centre."""
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    along = inner + outline[None, :, 0] * (lengths[:, None] - inner)
    across = outline[None, :, 1] * lengths[:, None]
    return np.stack([along * cos - across * sin, along * sin + across * cos], 2)


def rgb(color: Color) -> tuple[int, int, int]:
    """A colour with whole numbers between 0 and 255."""
    red, green, blue = (min(255, max(0, int(part))) for part in color)
    return red, green, blue


def shade(color: Color, factor: float) -> tuple[int, int, int]:
    """A colour made darker (factor < 1) or lighter."""
    return rgb([part * factor for part in color])


def jitter(rng: np.random.Generator, color: Color, spread: float = 12.0) -> tuple[int, int, int]:
    """A colour near this one."""
    return rgb((np.asarray(color) + rng.normal(0.0, spread, 3)).tolist())


class Sketch:
    """A canvas of twice the final resolution to draw polygons on; reading it halves the resolution again."""

    SCALE = 2

    def __init__(self, image: Image.Image) -> None:
        self.width, self.height = image.size
        self._image = image.resize((self.width * self.SCALE, self.height * self.SCALE), Image.Resampling.BILINEAR)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, points: Points, fill: Color, outline: Color | None = None) -> None:
        """A filled shape; points are in pixels of the final image, shape (points, 2)."""
        edge = rgb(outline) if outline is not None else None
        self._draw.polygon((points * self.SCALE).ravel().tolist(), fill=rgb(fill), outline=edge)

    def line(self, points: Points, fill: Color, width: float) -> None:
        """A polyline; its width is in pixels of the final image."""
        self._draw.line(
            (points * self.SCALE).ravel().tolist(),
            fill=rgb(fill),
            width=max(1, round(width * self.SCALE)),
            joint="curve" if width > 2 else None,
        )

    def dots(self, centres: Points, radius: float, fill: Color) -> None:
        """Small discs of one colour."""
        reach = max(0.5, radius * self.SCALE)
        for x, y in (centres * self.SCALE).tolist():
            self._draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=rgb(fill))

    def finish(self) -> Image.Image:
        """The drawing at its final resolution."""
        return self._image.reduce(self.SCALE)


def circle(points: int = 24) -> Points:
    """Points of the unit circle, shape (points, 2)."""
    around = np.linspace(0, 2 * np.pi, points, endpoint=False)
    return np.stack([np.cos(around), np.sin(around)], 1)
