"""Drawn photos of five classes of flowers: the demo's example data, and pictures for tests.

Read `drawing` first; `blooms` draws each species, `scene` what is around it, `shapes` petals and leaves.
"""

from assets.flowers.drawing import FLOWER_CLASSES, draw_flower, draw_flowers

__all__ = ["FLOWER_CLASSES", "draw_flower", "draw_flowers"]
