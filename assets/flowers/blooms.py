"""Drawing of the five flowers, one function per species; their surroundings are in `assets.flowers.scene`."""

from collections.abc import Callable

import numpy as np

from assets.flowers.shapes import Color, Petal, Points, Pose, Sketch, circle, fan, jitter, shade

Rng = np.random.Generator
Bloom = Callable[[Rng, Sketch, Pose], None]

_GREENS: tuple[Color, ...] = ((72, 120, 48), (96, 142, 62), (58, 98, 52), (110, 150, 80))


def _pick(rng: Rng, colors: tuple[Color, ...]) -> Color:
    return colors[int(rng.integers(len(colors)))]


def _ring(rng: Rng, sketch: Sketch, pose: Pose, petal: Petal, *, count: int, reach: float, color: Color) -> None:
    """A ring of petals, each in its own shade, with a darker edge and a lighter middle."""
    angles = (np.arange(count) + rng.uniform(0, 1)) * 2 * np.pi / count + rng.normal(0, 0.9 / count, count)
    lengths = reach * rng.normal(1.0, 0.06, count)
    outer = pose.place(fan(petal.outline(), angles, lengths, 0.1))
    inner = pose.place(
        fan(Petal(petal.breadth * 0.45, petal.fullest, petal.point).outline(4), angles, lengths * 0.93, 0.2)
    )
    for place in rng.permutation(count):
        tone = rng.normal(1.0, 0.07)
        sketch.polygon(outer[place], shade(color, tone), shade(color, tone * 0.66))
        sketch.polygon(inner[place], shade(color, tone * rng.uniform(0.9, 1.1)))


def _stem(rng: Rng, sketch: Sketch, pose: Pose, width: float) -> Points:
    """A bent stem from the bloom to below the picture; returns its points from top to bottom."""
    down = np.linspace(0, 1, 6)
    bend = rng.normal(0, 0.12) * sketch.height
    x = pose.x + bend * down**2
    y = pose.y + down * (sketch.height * 1.05 - pose.y)
    points = np.stack([x, y], 1)
    green = jitter(rng, _pick(rng, _GREENS))
    sketch.line(points, shade(green, 0.75), width)
    sketch.line(points - (width * 0.2, 0), green, width * 0.5)
    return points


def _leaf(rng: Rng, sketch: Sketch, base: Points, *, length: float, breadth: float, angle: float) -> None:
    green = jitter(rng, _pick(rng, _GREENS), 10)
    shape = fan(Petal(breadth, 0.4, 0.9).outline(8), np.array([angle]), np.array([length]))[0] + base
    sketch.polygon(shape, green, shade(green, 0.7))
    tip = base + length * 0.9 * np.array([np.cos(angle), np.sin(angle)])
    sketch.line(np.stack([base, tip]), shade(green, 1.25), 1)


def _side_leaves(rng: Rng, sketch: Sketch, stem: Points, size: float, breadth: float) -> None:
    for _ in range(int(rng.integers(0, 4))):
        base = stem[int(rng.integers(2, len(stem)))]
        angle = rng.choice([-0.5, np.pi + 0.5]) + rng.normal(0, 0.4)
        _leaf(rng, sketch, base, length=size * rng.uniform(0.5, 1.0), breadth=breadth, angle=float(angle))


def daisy(rng: Rng, sketch: Sketch, pose: Pose) -> None:
    """White narrow rays around a small yellow disc."""
    _stem(rng, sketch, pose, pose.radius * 0.09 + 1)
    color = jitter(rng, _pick(rng, ((242, 240, 236), (250, 248, 240), (236, 226, 240), (248, 226, 232))), 5)
    count = int(rng.integers(13, 27))
    petal = Petal(rng.uniform(4.2, 6.4) / count, rng.uniform(0.6, 0.8), rng.uniform(0.35, 0.6))
    if rng.random() < 0.6:
        _ring(rng, sketch, pose, petal, count=count, reach=1.0, color=shade(color, 0.86))
    _ring(rng, sketch, pose, petal, count=count, reach=0.96, color=color)
    _disc(rng, sketch, pose, size=rng.uniform(0.22, 0.34), color=_pick(rng, ((236, 188, 40), (222, 160, 30))))


def _disc(rng: Rng, sketch: Sketch, pose: Pose, *, size: float, color: Color) -> None:
    """The middle of a daisy: a grainy dome, lighter on one side."""
    color = jitter(rng, color)
    sketch.polygon(pose.place(circle() * size), shade(color, 0.7))
    sketch.polygon(pose.place(circle() * size * 0.86 - np.array([0.02, 0.03])), color)
    grain = _spiral(40) * size * 0.9
    sketch.dots(pose.place(grain[::2]), pose.radius * 0.022, shade(color, 1.2))
    sketch.dots(pose.place(grain[1::2]), pose.radius * 0.02, shade(color, 0.72))


def _spiral(count: int) -> Points:
    """Seeds of a flower head by the golden angle, within the unit circle, shape (count, 2)."""
    number = np.arange(count) + 0.5
    radius, angle = np.sqrt(number / count), number * 2.399963
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)


def dandelion(rng: Rng, sketch: Sketch, pose: Pose) -> None:
    """A full yellow head of many straps, or the white clock of seeds that it becomes."""
    _stem(rng, sketch, pose, pose.radius * 0.11 + 1)
    if rng.random() < 0.3:
        _clock(rng, sketch, pose)
        return
    color = jitter(rng, _pick(rng, ((246, 204, 24), (252, 214, 40), (240, 190, 20))), 8)
    for layer, reach in enumerate((1.0, 0.84, 0.66, 0.48, 0.3)):
        count = (34, 30, 24, 18, 11)[layer]
        straps = Petal(0.16 + 0.03 * layer, 0.85, 0.35)
        angles = np.arange(count) * 2 * np.pi / count + rng.normal(0, 0.08, count) + layer
        lengths = reach * rng.normal(1.0, 0.08, count)
        shapes = pose.place(fan(straps.outline(4), angles, lengths, 0.05))
        for shape in shapes:
            tone = rng.normal(0.94 + 0.02 * layer, 0.07)
            sketch.polygon(shape, shade(color, tone), shade(color, tone * 0.72))
    middle = pose.place(_spiral(16) * 0.16)
    sketch.dots(middle, pose.radius * 0.025, shade(color, 0.78))


def _clock(rng: Rng, sketch: Sketch, pose: Pose) -> None:
    """The seed head: pale rays that end in small stars, around a brown heart."""
    gone = rng.uniform(0.0, 0.3)  # seeds that the wind has taken
    ends = _spiral(110) * rng.normal(0.97, 0.03, (110, 1))
    ends = ends[rng.random(110) > gone]
    heart = np.zeros(2)
    pale = jitter(rng, (226, 228, 224), 8)
    for place, end in enumerate(ends):
        tone = 0.72 + 0.3 * place / len(ends)
        sketch.line(pose.place(np.stack([heart, end * 0.92])), shade(pale, tone * 0.85), 0.5)
        star = end * 0.9 + circle(5) * 0.11
        for tip in star:
            sketch.line(pose.place(np.stack([end * 0.9, tip])), shade(pale, tone * 1.1), 0.5)
    sketch.polygon(pose.place(circle(14) * 0.13), jitter(rng, (120, 110, 80)))


def sunflower(rng: Rng, sketch: Sketch, pose: Pose) -> None:
    """Two rings of pointed golden petals around a large dark head."""
    stem = _stem(rng, sketch, pose, pose.radius * 0.14 + 2)
    _side_leaves(rng, sketch, stem, pose.radius * 1.3, 0.6)
    color = jitter(rng, _pick(rng, ((246, 186, 16), (250, 200, 30), (236, 160, 12), (244, 170, 40))), 8)
    count = int(rng.integers(14, 23))
    petal = Petal(rng.uniform(4.4, 6.0) / count, rng.uniform(0.4, 0.55), rng.uniform(0.8, 1.1))
    _ring(rng, sketch, pose, petal, count=count, reach=1.0, color=shade(color, 0.84))
    _ring(rng, sketch, pose, petal, count=count, reach=0.92, color=color)
    size = rng.uniform(0.36, 0.52)
    brown = jitter(rng, _pick(rng, ((74, 46, 22), (92, 60, 26), (58, 40, 26), (104, 84, 36))), 6)
    sketch.polygon(pose.place(circle() * size), shade(brown, 0.8))
    seeds = _spiral(90) * size * 0.96
    sketch.dots(pose.place(seeds[45:]), pose.radius * 0.024, shade(brown, 1.5))
    sketch.dots(pose.place(seeds[:45]), pose.radius * 0.024, jitter(rng, (112, 104, 48), 10))
    sketch.polygon(pose.place(circle(14) * size * 0.3), shade(brown, 0.9))


_ROSES: tuple[Color, ...] = (
    (188, 18, 38),
    (214, 52, 78),
    (236, 140, 164),
    (240, 214, 208),
    (244, 196, 84),
    (240, 142, 96),
)


def rose(rng: Rng, sketch: Sketch, pose: Pose) -> None:
    """Broad petals laid over each other, smaller and deeper towards a rolled heart."""
    stem = _stem(rng, sketch, pose, pose.radius * 0.1 + 1)
    _side_leaves(rng, sketch, stem, pose.radius * 1.1, 0.55)
    for _ in range(int(rng.integers(1, 5))):
        base = np.array([pose.x, pose.y])
        _leaf(rng, sketch, base, length=pose.radius * 1.35, breadth=0.45, angle=rng.uniform(0, 2 * np.pi))
    color = jitter(rng, _pick(rng, _ROSES), 10)
    turn = rng.uniform(0, 2 * np.pi)
    reaches = np.linspace(0.62, 0.1, int(rng.integers(6, 9)))
    for layer, reach in enumerate(reaches):
        count = max(3, 6 - layer // 2)
        depth = 1.06 - 0.42 * layer / len(reaches)
        for number in range(count):
            angle = turn + 2 * np.pi * number / count + rng.normal(0, 0.1)
            _rose_petal(rng, sketch, pose, angle=angle, reach=reach, color=shade(color, depth * rng.normal(1, 0.04)))
        turn += 2.4
    around = np.linspace(0, 3.2 * np.pi, 20)
    heart = np.stack([np.cos(around + turn), np.sin(around + turn)], 1) * (0.02 + 0.012 * around[:, None])
    sketch.line(pose.place(heart), shade(color, 0.42), pose.radius * 0.022)


def _rose_petal(rng: Rng, sketch: Sketch, pose: Pose, *, angle: float, reach: float, color: Color) -> None:
    away = np.array([np.cos(angle), np.sin(angle)])
    wobble = 1 + 0.05 * np.sin(np.arange(18) * 2 + rng.uniform(0, 6))[:, None]
    size = 0.2 + 0.32 * reach
    body = circle(18) * size * wobble
    sketch.polygon(pose.place(body + away * reach), shade(color, 1.12), shade(color, 0.6))
    sketch.polygon(pose.place(body * 0.86 + away * (reach - size * 0.16)), color)


_TULIPS: tuple[Color, ...] = (
    (206, 28, 36), (232, 92, 128), (248, 204, 44), (132, 46, 132), (244, 236, 226), (240, 124, 44),
    (248, 170, 190),
)  # fmt: skip


def tulip(rng: Rng, sketch: Sketch, pose: Pose) -> None:
    """A cup of upright petals on a straight stem between long blades, seen from the side."""
    stem = _stem(rng, sketch, pose, pose.radius * 0.13 + 1)
    for side in (-1, 1):
        if rng.random() < 0.8:
            foot = stem[int(rng.integers(3, len(stem)))]
            angle = -np.pi / 2 + side * rng.uniform(0.15, 0.6)
            _leaf(rng, sketch, foot, length=pose.radius * rng.uniform(1.4, 2.6), breadth=0.18, angle=angle)
    color = jitter(rng, _pick(rng, _TULIPS), 10)
    blush = jitter(rng, _pick(rng, _TULIPS), 10) if rng.random() < 0.3 else shade(color, 1.18)
    opening = rng.uniform(0.14, 0.5)  # radians between neighbouring petals: a bud or an open cup
    lean = -np.pi / 2 + rng.normal(0, 0.14)
    foot = np.array([0.0, 0.8])
    for spread, tone, breadth in (
        (-1.5, 0.72, 0.5),
        (1.5, 0.72, 0.5),
        (0.6, 0.8, 0.55),
        (-1, 0.92, 0.58),
        (1, 0.96, 0.58),
        (0, 1.0, 0.6),
    ):
        angle = lean + spread * opening
        petal = Petal(breadth * rng.normal(1.0, 0.06), rng.uniform(0.45, 0.6), rng.uniform(0.6, 0.85))
        reach = 1.75 * rng.normal(1.0, 0.04) * (1.0 if spread else 0.92)
        body = fan(petal.outline(9), np.array([angle]), np.array([reach]))[0] + foot
        streak = fan(Petal(breadth * 0.4, 0.5, 0.8).outline(6), np.array([angle]), np.array([reach * 0.9]))[0] + foot
        fill = shade(color, tone)
        sketch.polygon(_upright(pose, body), fill, shade(fill, 0.68))
        sketch.polygon(_upright(pose, streak), shade(blush, tone))


def _upright(pose: Pose, points: Points) -> Points:
    return points * pose.radius * (0.85, 1.0) + (pose.x, pose.y)


BLOOMS: dict[str, Bloom] = {
    "daisy": daisy,
    "dandelion": dandelion,
    "roses": rose,
    "sunflowers": sunflower,
    "tulips": tulip,
}
"""Class name, as in TensorFlow's flowers photos, to the function that draws one bloom."""
