"""Perceptual hashes: copies of a photo are found, other photos are not; and the pairs of hashes that are close."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from smalti.images import encode_jpeg, prepare_jpeg
from smalti.images.pixels import HASH_BYTES, perceptual_hash
from smalti.spark.prepared.alike import MAX_NEIGHBOURS, find_near

PHOTOS = Path(__file__).resolve().parents[3] / "shared" / "flowers"


def hashed(photo: bytes) -> int:
    """The hash of a photo as it is prepared for training."""
    found = perceptual_hash(prepare_jpeg(photo, size=96, quality=90).data)
    assert found is not None
    assert len(found) == HASH_BYTES
    return int.from_bytes(found, "big")


def saved(image: Image.Image, quality: int = 90) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


def scaled(image: Image.Image, by: float) -> Image.Image:
    return image.resize((round(image.width * by), round(image.height * by)), Image.Resampling.LANCZOS)


def photos(step: int) -> list[Path]:
    found = sorted(PHOTOS.glob("*/*.jpg"))
    if not found:
        pytest.skip(f"{PHOTOS} is not there")
    return found[::step]


@pytest.mark.parametrize(
    "copy",
    [
        lambda image: saved(scaled(image, 0.5)),
        lambda image: saved(scaled(image, 2)),
        lambda image: saved(image, 50),
        lambda image: saved(scaled(image, 0.5), 50),
        lambda image: saved(ImageEnhance.Brightness(image).enhance(1.15)),
    ],
    ids=["half the size", "twice the size", "quality 50", "half the size and quality 50", "brighter"],
)
def test_a_copy_of_a_photo_differs_in_a_few_bits(copy):
    chosen = photos(25)
    bits = [(hashed(path.read_bytes()) ^ hashed(copy(Image.open(path)))).bit_count() for path in chosen]
    assert sum(each <= 8 for each in bits) >= 0.95 * len(bits)


def test_photos_of_one_class_are_told_apart():
    """A hundred of tulips hold one pair that is alike: two shots of the same ones."""
    paths = [path for path in photos(1) if path.parent.name == "tulips"]
    names = [path.stem for path in paths]
    hashes = [hashed(path.read_bytes()).to_bytes(HASH_BYTES, "big") for path in paths]
    places, _, is_complete = find_near(hashes, 16)
    assert is_complete
    [pair] = places.tolist()
    assert [names[place] for place in pair] == ["12916135413_dafcf3089e_n", "12916441224_2ed63596f8_n"]


def test_a_plain_image_has_no_hash():
    assert perceptual_hash(encode_jpeg(np.full((32, 32, 3), 200, np.uint8), 90)) is None


@pytest.mark.parametrize("max_bits", [0, 1, 8])
def test_the_pairs_are_those_of_a_comparison_of_all(max_bits):
    dice = np.random.default_rng(7)
    hashes = dice.integers(0, 2**64, (300, 2), dtype=np.uint64)
    for place in range(100, 200):  # copies of the first hundred with 0 to 9 bits flipped
        bits = np.unpackbits(hashes[place - 100].view(np.uint8))
        bits[dice.choice(128, place % 10, replace=False)] ^= 1
        hashes[place] = np.packbits(bits).view(np.uint64)
    places, bits, is_complete = find_near([two.tobytes() for two in hashes], max_bits)
    assert is_complete
    assert places.tolist() == [[n, n + 100] for n in range(100) if n % 10 <= max_bits]
    assert bits.tolist() == [n % 10 for n in range(100) if n % 10 <= max_bits]


def test_many_hashes_that_are_alike_are_not_all_compared_and_this_is_said():
    hashes = np.zeros((4 * MAX_NEIGHBOURS, 2), np.uint64)
    hashes[:, 0] = np.arange(len(hashes))  # differ in seven bits at most
    places, _, is_complete = find_near([two.tobytes() for two in hashes], 8)
    assert not is_complete
    assert set(places.ravel().tolist()) == set(range(len(hashes)))


def test_no_hashes_have_no_pairs():
    assert find_near([], 8)[0].tolist() == []
