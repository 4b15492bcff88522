"""Random resized crops: drawn from (seed, epoch, sample id) alone, within the image, near Pillow's pixels."""

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from assets.drawing import draw_flower
from smalti.dataset import StreamingDataset
from smalti.errors import ArgumentError
from smalti.images import DecodeImages, RandomResizedCrop, decode_batch, decode_rgb, encode_jpeg
from smalti.images.batches import Box, centre_box
from smalti.writer import MDSWriter
from tests.conftest import SHARED

PHOTOS = sorted(SHARED.glob("flowers/*/*.jpg"))[::20]
MIDDLE = [0.9, 0.5, 0.5]  # not mirrored, in the middle
TOO_LONG = [0.999, 0.0] * 10  # of an image of one row: 1 / 4 of its width, and more rows than it has


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def ramp(height: int, width: int) -> bytes:
    """Return a PNG whose pixels are (row, column, 0)."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows, columns, 0 * rows], axis=-1).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def boxes(crop: RandomResizedCrop, height: int, width: int, count: int) -> list[Box]:
    return [crop.box(height, width, draws) for draws in crop.draw(0, np.arange(count)).tolist()]


# ---------------------------------------------------------------- what is drawn


def test_a_part_is_made_of_its_numbers():
    crop = RandomResizedCrop(scale=(0.25, 0.75), ratio=(1.0, 1.0))
    # Half of the area of 100 x 200 is a square of 100 x 100; of the 101 places from left to right the middle one is 50.
    assert crop.box(100, 200, [*MIDDLE, 0.5, 0.7]) == Box(0, 50, 100, 100, is_mirrored=False)
    # A quarter is 71 x 71: 30 places from top to bottom, 130 from left to right.
    assert crop.box(100, 200, [0.1, 0.0, 0.999, 0.0, 0.7]) == Box(0, 129, 71, 71, is_mirrored=True)
    # Three quarters, 122 x 122, do not fit; the next shape does.
    assert crop.box(100, 200, [*MIDDLE, 1.0, 0.7, 0.5, 0.7]) == Box(0, 50, 100, 100, is_mirrored=False)


@pytest.mark.parametrize(("shape", "expected"), [((300, 3), Box(148, 0, 4, 3)), ((3, 300), Box(0, 148, 3, 4))])
def test_an_image_into_which_no_shape_fits_shows_its_middle(shape, expected):
    assert RandomResizedCrop(scale=(1.0, 1.0), flip=0).box(*shape, [*MIDDLE, *TOO_LONG]) == expected


@pytest.mark.parametrize(("height", "width"), [(240, 320), (333, 500), (64, 64), (1, 1), (2, 900)])
def test_parts_lie_in_the_image_and_have_the_area_and_ratio_that_were_asked_for(height, width):
    drawn = boxes(RandomResizedCrop(), height, width, 2_000)
    assert all(0 <= box.top <= height - box.height and 0 <= box.left <= width - box.width for box in drawn)
    assert min(min(box.height, box.width) for box in drawn) >= 1
    if height >= 64:
        areas = np.array([box.height * box.width / (height * width) for box in drawn])
        ratios = np.array([box.width / box.height for box in drawn])
        assert 0.07 <= areas.min() <= 0.1
        assert 0.85 <= areas.max() <= 1  # of 500 x 333 pixels, 4 / 3 is 89 %
        assert 0.72 <= ratios.min() <= 0.78
        assert 1.28 <= ratios.max() <= 1.39
        assert 0.45 <= np.mean([box.is_mirrored for box in drawn]) <= 0.55


def test_a_draw_depends_on_the_seed_the_epoch_and_the_id_and_on_nothing_else():
    crop = RandomResizedCrop(seed=7)
    together = crop.draw(3, ids(4, 9, 2, 11))
    assert (together[[2, 0]] == crop.draw(3, ids(2, 4))).all()
    for other in (RandomResizedCrop(seed=8).draw(3, ids(4)), crop.draw(4, ids(4)), crop.draw(3, ids(5))):
        assert (other[0] != together[0]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "`seed`"),
        ({"seed": 0.5}, "`seed`"),
        ({"scale": (0.0, 1.0)}, "`scale`"),
        ({"scale": (0.5, 1.1)}, "`scale`"),
        ({"scale": 0.5}, "`scale`"),
        ({"ratio": (2, 1)}, "`ratio`"),
        ({"ratio": (1, float("inf"))}, "`ratio`"),
        ({"flip": 2}, "`flip`"),
        ({"flip": "yes"}, "`flip`"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RandomResizedCrop(**options)


# ---------------------------------------------------------------- pixels


def test_a_part_begins_at_the_nearest_pixel_of_a_reduced_scale():
    pixels = np.zeros((3 * 40, 3 * 60, 3), np.uint8)  # 320 x 480 at three eighths
    part = Box(100, 83, 81, 161).of(pixels, 320, 480)
    assert part.shape == (31, 61, 3)  # 30.4 and 60.4, rounded up
    begin = part.__array_interface__["data"][0] - pixels.__array_interface__["data"][0]
    assert divmod(begin // 3, 180) == (37, 31)  # 37.5 and 31.1
    assert Box(239, 0, 81, 480).of(pixels, 320, 480).shape == (31, 180, 3)


def test_the_decoded_scale_leaves_the_part_its_size():
    assert centre_box(1200, 1600).least_side(224, 1200, 1600) == 224
    assert Box(0, 0, 400, 700).least_side(224, 1200, 1600) == 672  # 1200 x 224 / 400
    assert centre_box(1200, 1600, 224).least_side(224, 1200, 1600) == 1200


@pytest.mark.parametrize("layout", ["hwc", "chw"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_pixels_are_those_of_the_part_and_mirrored_ones_are_exchanged(kind, layout):
    data = ramp(200, 240)
    if kind == "JPEG":
        data = encode_jpeg(decode_rgb(data), 100)
    crop, samples = RandomResizedCrop(seed=1), np.arange(12)
    batch = decode_batch([data] * 12, size=50, crop=crop, layout=layout, epoch=2, sample_ids=samples)
    drawn = [crop.box(200, 240, draws) for draws in crop.draw(2, samples).tolist()]
    assert {box.is_mirrored for box in drawn} == {True, False}
    for pixels, box in zip(batch if layout == "hwc" else batch.transpose(0, 2, 3, 1), drawn, strict=True):
        columns = np.arange(50) + 0.5
        rows = box.top + columns * box.height / 50 - 0.5
        columns = box.left + (columns[::-1] if box.is_mirrored else columns) * box.width / 50 - 0.5
        # Half a pixel of the smallest scale that is decoded is 2 as stored.
        assert np.abs(pixels[..., 0] - rows[:, None]).max() <= (2 if kind == "PNG" else 5)
        assert np.abs(pixels[..., 1] - columns).max() <= (2 if kind == "PNG" else 5)
        assert pixels[..., 2].mean() <= 3


def test_an_image_of_the_size_that_is_only_mirrored_is_mirrored():
    data = ramp(50, 50)
    crop = RandomResizedCrop(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=1)
    for file in (data, encode_jpeg(decode_rgb(data), 100)):
        batch = decode_batch([file], size=50, crop=crop, epoch=0, sample_ids=ids(3))
        assert np.abs(batch[0].astype(int) - decode_rgb(file)[:, ::-1]).max() <= 6


@pytest.mark.parametrize("source", ["photos", "drawn"])
def test_crops_are_near_those_of_pillow_from_all_pixels(source):
    """The bound of docs/reading.md: whole pixels, Pillow's bilinear filter, and its mirror."""
    if source == "photos" and not PHOTOS:
        pytest.skip("there are no photos in ../shared/flowers")
    drawn = [draw_flower("tulips", number=number, size=(900, 640)) for number in range(8)]
    images = [path.read_bytes() for path in PHOTOS] if source == "photos" else drawn
    crop, samples = RandomResizedCrop(seed=3), np.arange(len(images))
    for size in (96, 224):
        batch = decode_batch(images, size=size, crop=crop, epoch=1, sample_ids=samples)
        means = []
        for data, draws, pixels in zip(images, crop.draw(1, samples).tolist(), batch, strict=True):
            whole = decode_rgb(data)
            top, left, height, width, is_mirrored = crop.box(*whole.shape[:2], draws)
            part = Image.fromarray(np.ascontiguousarray(whole[top : top + height, left : left + width]))
            expected = np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))
            expected = expected[:, ::-1] if is_mirrored else expected
            means.append(np.abs(pixels.astype(int) - expected).mean())
        assert np.mean(means) <= 4
        assert max(means) <= 16


# ---------------------------------------------------------------- batches and datasets


def test_parts_do_not_depend_on_the_batch_nor_on_its_threads():
    images = [draw_flower("daisy", number=number, size=(120 + number, 90)) for number in range(6)]
    transform = pickle.loads(
        pickle.dumps(DecodeImages(size=32, columns=("x",), crop=RandomResizedCrop(), num_threads=3))
    )
    together = transform({"x": images}, epoch=1, sample_ids=np.arange(10, 16))["x"]
    for number in (4, 1):
        alone = transform({"x": [images[number]], "_sample_id": ids(10 + number)}, epoch=1)["x"]
        assert (alone[0] == together[number]).all()
    assert (transform({"x": images}, epoch=2, sample_ids=np.arange(10, 16))["x"] != together).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({}, "epoch None and ids: none"),
        ({"epoch": 1}, "ids: none"),
        ({"epoch": 1, "sample_ids": ids(1)}, "ids: 1 of 2"),
    ],
)
def test_a_random_part_without_an_epoch_and_ids_is_refused(arguments, found):
    with pytest.raises(ArgumentError, match=found):
        DecodeImages(size=8, columns=("x",), crop=RandomResizedCrop())({"x": [ramp(9, 9)] * 2}, **arguments)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crops") / "set"
    with MDSWriter(out=str(folder), columns={"image": "jpeg", "number": "int"}, size_limit=20_000) as writer:
        for number in range(24):
            writer.write({"image": draw_flower("roses", number=number, size=(64, 48)), "number": number})
    return str(folder)


def read(root, **options):
    transform = DecodeImages(size=16, columns=("image",), crop=RandomResizedCrop(seed=5))
    return StreamingDataset(remote=root, transform=transform, shuffle=True, **options)


def by_number(batches) -> dict[int, bytes]:
    return {
        int(number): pixels.tobytes()
        for batch in batches
        for number, pixels in zip(batch["number"], batch["image"], strict=True)
    }


def test_a_dataset_shows_each_sample_as_its_epoch_has_it_whatever_the_batch(root):
    first, second = read(root, batch_size=4), read(root, batch_size=5, include_ids=True)
    views = by_number(first.batches())
    assert len(views) == 24
    assert by_number(second.batches()) == views
    later = by_number(first.batches())
    assert all(later[number] != views[number] for number in views)


def test_a_run_that_continues_shows_what_it_would_have_shown(root):
    dataset = read(root, batch_size=4)
    list(dataset.batches())
    batches = dataset.batches()
    for _ in range(2):
        next(batches)
    state = dataset.state_dict(8, from_beginning=True)
    rest = by_number(batches)
    resumed = read(root, batch_size=4)
    resumed.load_state_dict(state)
    assert by_number(resumed.batches()) == rest
    assert len(rest) == 16


def test_a_single_sample_is_that_of_the_epoch_that_comes_next(root):
    dataset = read(root, batch_size=4)
    dataset.set_epoch(2)
    views = {int(sample["number"]): sample["image"].tobytes() for sample in map(dataset.__getitem__, range(24))}
    assert by_number(dataset.batches()) == views


@pytest.mark.torch
@pytest.mark.parametrize(
    ("num_workers", "kind"), [(0, "thread"), (2, "thread"), pytest.param(1, "process", marks=pytest.mark.process)]
)
def test_loader_workers_show_the_same_parts(root, num_workers, kind):
    from smalti.torch import StreamingDataLoader
    from smalti.torch import StreamingDataset as TorchDataset

    transform = DecodeImages(size=16, columns=("image",), crop=RandomResizedCrop(seed=5))
    dataset = TorchDataset(remote=root, transform=transform, shuffle=True, batch_size=4)
    options = {"worker_kind": kind} if num_workers else {}
    loader = StreamingDataLoader(dataset, num_workers=num_workers, **options)
    expected = read(root, batch_size=4)
    for _ in range(2):
        views = by_number({name: values.numpy() for name, values in batch.items()} for batch in loader)
        assert views == by_number(expected.batches())
