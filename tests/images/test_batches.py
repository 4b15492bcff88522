"""Batches of encoded images as one array, and the transform that decodes columns of images."""

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from assets.drawing import draw_flower
from smalti.errors import BadImageError, SchemaError
from smalti.images import DecodeImages, decode_batch, decode_rgb, encode_jpeg, resize_square

GOOD = encode_jpeg(np.zeros((24, 24, 3), np.uint8), 90)
BOMB = GOOD.replace(b"\x00\x18\x00\x18", b"\xff\xfa\xff\xfa", 1)  # 24 x 24 pixels whose header declares 65530 x 65530


def save(image: Image.Image, kind: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def framed(width: int, height: int, size: int) -> Image.Image:
    """Return a red image whose middle `size` x `size` pixels are a grey ramp from left to right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = 255
    top, left = (height - size) // 2, (width - size) // 2
    pixels[top : top + size, left : left + size] = np.linspace(0, 250, size, dtype=np.uint8)[None, :, None]
    return Image.fromarray(pixels)


def mean_distance(found, expected) -> float:
    """Return the mean distance of two arrays of pixels, in steps of 255."""
    assert found.shape == expected.shape
    return float(np.abs(found.astype(int) - expected.astype(int)).mean())


def test_a_batch_is_one_array_of_centre_squares():
    exact = encode_jpeg(np.full((24, 24, 3), 90, np.uint8), 95)
    grey = save(Image.new("L", (24, 24), 30), "JPEG", quality=95)
    cmyk = save(framed(24, 24, 12).convert("CMYK"), "JPEG", quality=95, subsampling=0)
    wide = save(Image.new("RGB", (90, 40), (10, 200, 10)), "PNG")
    batch = decode_batch([exact, grey, cmyk, wide], size=24)
    assert batch.shape == (4, 24, 24, 3)
    assert batch.dtype == np.uint8
    assert mean_distance(batch[0], np.full((24, 24, 3), 90)) <= 1
    assert mean_distance(batch[1], np.full((24, 24, 3), 30)) <= 1
    assert mean_distance(batch[2], np.asarray(framed(24, 24, 12).convert("CMYK").convert("RGB"))) < 6
    assert batch[3, 12, 12].tolist() == [10, 200, 10]
    assert decode_batch([], size=24).shape == (0, 24, 24, 3)


@pytest.mark.parametrize("kind", ["PNG", "BMP"])
@pytest.mark.parametrize(("width", "height"), [(40, 40), (41, 57), (16, 40), (16, 16)])
def test_center_crop_keeps_the_middle_pixels_unchanged(kind, width, height):
    batch = decode_batch([save(framed(width, height, 16), kind)], size=16, crop="center")
    assert (batch[0] == np.linspace(0, 250, 16, dtype=np.uint8)[None, :, None]).all()


@pytest.mark.parametrize(("width", "height"), [(256, 256), (300, 224), (224, 301), (225, 226)])
def test_center_crop_of_a_jpeg_equals_the_middle_of_the_whole(width, height):
    data = draw_flower("roses", number=1, size=(width, height))
    top, left = (height - 224) // 2, (width - 224) // 2
    expected = decode_rgb(data)[top : top + 224, left : left + 224]
    assert mean_distance(decode_batch([data], size=224, crop="center")[0], expected) < 3  # colours are not interpolated


def test_center_crop_resizes_smaller_images():
    data = save(framed(10, 40, 8), "PNG")
    found = decode_batch([data], size=16, crop="center", interpolation="bicubic")[0]
    expected = resize_square(decode_rgb(data)[15:25], 16)
    assert np.abs(found.astype(int) - expected).max() <= 2


@pytest.mark.parametrize("size", [32, 96, 160, 224, 256])
def test_a_photo_is_resized_to_its_centre_square(size):
    data = draw_flower("tulips", number=2, size=(256, 256))
    expected = resize_square(decode_rgb(data), size)
    assert mean_distance(decode_batch([data], size=size)[0], expected) < 6


@pytest.mark.parametrize("crop", ["resize", "center"])
def test_channels_first_holds_the_same_pixels(crop):
    images = [
        draw_flower("daisy", number=3, size=(256, 256)),
        draw_flower("daisy", number=4, size=(224, 224)),
        save(framed(250, 240, 32), "PNG"),
    ]
    last = decode_batch(images, size=224, crop=crop)
    first = decode_batch(images, size=224, crop=crop, layout="chw")
    assert first.shape == (3, 3, 224, 224)
    assert first.flags.c_contiguous
    assert (first == last.transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize("num_threads", [2, 3, 16])
def test_threads_decode_the_same_batch(num_threads):
    images = [draw_flower("roses", number=number, size=(60 + number, 70)) for number in range(7)]
    alone = decode_batch(images, size=48)
    for _ in range(3):
        assert (decode_batch(images, size=48, num_threads=num_threads) == alone).all()
    assert decode_batch([], size=48, num_threads=num_threads).shape == (0, 48, 48, 3)


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("bad", [b"", b"text text text text", GOOD[:-20], BOMB], ids=["empty", "text", "cut", "bomb"])
def test_a_bad_image_in_a_batch_is_named_by_its_place(bad, num_threads):
    for place in range(4):
        images = [GOOD] * 5
        images[place] = images[4] = bad
        with pytest.raises(BadImageError, match=f"image {place} of the batch") as caught:
            decode_batch(images, size=24, num_threads=num_threads)
        assert caught.value.index == place


def test_an_image_that_declares_too_many_pixels_is_refused_before_any_is_allocated():
    for crop in ("center", "resize"):
        with pytest.raises(BadImageError, match="65530x65530 = 4,294,180,900 pixels, above the limit"):
            decode_batch([BOMB], size=24, crop=crop)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "`size`"),
        ({"size": 2.5}, "`size`"),
        ({"size": 8, "crop": "middle"}, "`crop`"),
        ({"size": 8, "layout": "nhwc"}, "`layout`"),
        ({"size": 8, "num_threads": 0}, "`num_threads`"),
        ({"size": 8, "interpolation": "nearest"}, "`interpolation`"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        DecodeImages(**options)


def test_arguments_by_place_keep_their_meaning():
    assert DecodeImages(8, ("image",), "center", "chw", 2).num_threads == 2


# ---------------------------------------------------------------- the transform


def columns(count=3):
    images = [encode_jpeg(np.full((20, 20, 3), 10 * number, np.uint8), 95) for number in range(count)]
    return {"image": images, "name": [b"BM!", b"x", b"y"][:count], "label": np.arange(count), "text": ["a"] * count}


def test_columns_of_images_become_pixels_and_others_stay():
    before = columns()
    found = DecodeImages(size=20)(before)
    assert found["image"].shape == (3, 20, 20, 3)
    assert [int(image.mean()) for image in found["image"]] == [0, 10, 20]
    assert found["name"] is before["name"]  # one of three values begins like a bitmap: not most of them
    assert found["label"] is before["label"]
    assert found["text"] is before["text"]
    assert isinstance(before["image"], list)


def test_one_damaged_image_does_not_hide_an_image_column():
    batch = columns() | {"_sample_id": np.array([70, 80, 90])}
    batch["image"][0] = b"\0\0 damaged"
    with pytest.raises(BadImageError, match=r"sample 70, column 'image': image 0 of the batch") as caught:
        DecodeImages(size=20)(batch)
    assert (caught.value.column, caught.value.index, caught.value.sample_id) == ("image", 0, 70)


def test_named_columns_are_decoded_whatever_their_first_bytes():
    with pytest.raises(BadImageError, match="column 'name': image 0 of the batch"):
        DecodeImages(size=20, columns=("image", "name"))(columns())
    found = DecodeImages(size=20, columns=("image",), layout="chw", num_threads=2)(columns())
    assert found["image"].shape == (3, 3, 20, 20)


def test_a_named_column_that_holds_no_images_is_refused():
    with pytest.raises(SchemaError, match="no column 'picture'; the columns are image, name, label, text"):
        DecodeImages(size=20, columns=("picture",))(columns())
    for name in ("label", "text"):
        with pytest.raises(SchemaError, match=f"column '{name}' holds"):
            DecodeImages(size=20, columns=(name,))(columns())
    with pytest.raises(TypeError, match="comma"):
        DecodeImages(size=20, columns="image")


def test_the_transform_can_be_pickled_and_declares_its_input():
    transform = pickle.loads(pickle.dumps(DecodeImages(size=20, crop="center", num_threads=2)))
    assert transform.on_batches
    assert transform.thread_safe
    assert transform(columns())["image"].shape == (3, 20, 20, 3)


def test_a_dataset_reads_pixels(tmp_path):
    from smalti.dataset import StreamingDataset
    from smalti.writer import MDSWriter

    with MDSWriter(out=str(tmp_path / "s"), columns={"image": "jpeg", "label": "int"}) as writer:
        for number in range(10):
            picture = encode_jpeg(np.full((30, 30, 3), 20 * number, np.uint8), 95)
            writer.write({"image": picture, "label": number})
    dataset = StreamingDataset(remote=str(tmp_path / "s"), batch_size=4, transform=DecodeImages(16, crop="center"))
    found = list(dataset.batches())
    assert [batch["image"].shape for batch in found][:2] == [(4, 16, 16, 3)] * 2
    for batch in found:
        assert [int(image.mean()) for image in batch["image"]] == [20 * label for label in batch["label"].tolist()]
