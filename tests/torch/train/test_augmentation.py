"""The view of a training image depends on (seed, epoch, sample id) only."""

import numpy as np
import pytest
import torch

from smalti.torch.train.tasks.images import VIEW, apply_views, draw_views

pytestmark = pytest.mark.torch

PLAIN = {
    "flip": 1.0,
    "zoom": 1.0,
    "shift_x": 0.0,
    "shift_y": 0.0,
    "brightness": 1.0,
    "contrast": 1.0,
    "saturation": 1.0,
}


def views(count=1, **changed):
    return np.repeat(np.array([[{**PLAIN, **changed}[name]] for name in VIEW], dtype=np.float32), count, axis=1)


def drawn(seed, epoch, ids) -> dict[str, np.ndarray]:
    return dict(zip(VIEW, draw_views(seed, epoch, ids), strict=True))


def ids(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_a_samples_view_does_not_depend_on_its_batch():
    together = draw_views(7, 3, ids(4, 9, 2, 11))
    assert np.array_equal(together[:, [2, 0]], draw_views(7, 3, ids(2, 4)))


def test_seed_epoch_and_id_each_change_the_view():
    first = draw_views(7, 3, ids(5))
    assert not any(
        np.array_equal(first, other)
        for other in (draw_views(8, 3, ids(5)), draw_views(7, 4, ids(5)), draw_views(7, 3, ids(6)))
    )


# Worked out with Python's own integers: the first two draws of splitmix64 over (17, 0, id).
GOLDEN_FLIP = [-1.0, 1.0, -1.0]
GOLDEN_ZOOM = [0.8228267, 0.8967746, 0.7443711]


def test_the_draws_are_these_numbers_on_every_platform():
    view = drawn(17, 0, ids(0, 1, 2))
    assert view["flip"].tolist() == GOLDEN_FLIP
    assert view["zoom"].tolist() == pytest.approx(GOLDEN_ZOOM, abs=1e-7)


def test_the_draws_fill_their_ranges_evenly():
    view = drawn(1, 0, np.arange(20_000, dtype=np.int64))
    assert abs(float(view["flip"].mean())) < 0.03
    assert 0.699 < float(view["zoom"].min()) < 0.701
    assert 0.84 < float(view["zoom"].mean()) < 0.86
    assert abs(float(view["shift_x"].mean())) < 0.01
    assert 0.85 <= float(view["contrast"].min()) < float(view["contrast"].max()) <= 1.15
    # The crop never leaves the image.
    assert float((np.abs(view["shift_x"]) + view["zoom"]).max()) <= 1.0 + 1e-6
    assert abs(float(np.corrcoef(view["zoom"], view["brightness"])[0, 1])) < 0.03


def test_the_identity_view_changes_nothing():
    pixels = torch.rand(2, 3, 8, 8)
    assert torch.allclose(apply_views(pixels, views(2)), pixels, atol=1e-5)


def test_a_flip_mirrors_left_and_right():
    pixels = torch.rand(1, 3, 8, 8)
    assert torch.allclose(apply_views(pixels, views(flip=-1.0)), pixels.flip(3), atol=1e-5)


def test_a_crop_shows_its_corner():
    pixels = torch.zeros(1, 3, 8, 8)
    pixels[:, :, :4, 4:] = 1.0
    seen = apply_views(pixels, views(zoom=0.5, shift_x=0.5, shift_y=-0.5))
    assert float(seen[:, :, 1:-1, 1:-1].min()) == pytest.approx(1.0)


def test_colours_stay_in_range_and_brightness_scales():
    pixels = torch.full((1, 3, 4, 4), 0.5)
    assert apply_views(pixels, views(brightness=1.1)).unique().tolist() == pytest.approx([0.55])
    assert float(apply_views(pixels * 2, views(brightness=1.15)).max()) == 1.0


def test_an_image_looks_the_same_alone_and_in_a_batch():
    pixels, some = torch.rand(4, 3, 16, 16), draw_views(3, 1, ids(10, 11, 12, 13))
    whole = apply_views(pixels, some)
    for place in range(4):
        assert torch.equal(apply_views(pixels[place : place + 1], some[:, [place]]), whole[place : place + 1])
