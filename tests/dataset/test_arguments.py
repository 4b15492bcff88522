"""The constructor's arguments: how many there are, and where those of earlier releases are now."""

import inspect

import pytest

from smalti.cache import CacheOptions
from smalti.dataset import OrderOptions, StreamingDataset, open_dataset
from smalti.dataset.streaming import MOVED
from smalti.errors import SmaltiError
from smalti.stream import Stream


def test_a_dataset_has_at_most_twenty_arguments():
    assert len(inspect.signature(StreamingDataset).parameters) <= 20


@pytest.mark.parametrize("name", MOVED)
def test_an_argument_of_an_earlier_release_is_refused_and_its_place_is_named(name):
    with pytest.raises(TypeError, match=f"StreamingDataset .*`{name}` is ") as caught:
        StreamingDataset(remote="/x", **{name: 1})
    assert isinstance(caught.value, SmaltiError)


@pytest.mark.parametrize("name", MOVED)
def test_the_place_that_is_named_has_the_argument(name):
    text = MOVED[name]
    for kind in (CacheOptions, OrderOptions):
        if kind.__name__ in text:
            assert f"{kind.__name__}({name}=...)" in text
            assert name in kind.__dataclass_fields__


def test_all_arguments_that_moved_are_named_at_once():
    with pytest.raises(TypeError, match=r"`local` is .*; `tail` is now in order=OrderOptions\(tail=...\)"):
        open_dataset("/x", local="/y", tail="drop")


def test_a_stream_names_the_place_of_its_former_arguments():
    with pytest.raises(TypeError, match=r"Stream .*`local` is now in cache=CacheOptions\(local=...\)"):
        Stream(remote="/x", local="/y")


def test_an_order_of_mosaicml_is_refused_with_the_class_that_has_it():
    with pytest.raises(TypeError, match=r"smalti\.compat\.streaming\.StreamingDataset, which continues their runs"):
        StreamingDataset(remote="/x", shuffle=True, shuffle_algo="py1e")


def test_an_argument_that_never_was_is_pythons_own_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        StreamingDataset(remote="/x", colour=1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"cache": "none"}, r"`cache` must be smalti.CacheOptions\(...\), found 'none'.*CacheOptions\(mode='none'\)"),
        ({"order": "window"}, r"`order` must be smalti.OrderOptions\(...\), found 'window'"),
        ({"world": 4}, "`world` must be a smalti.World, found 4"),
    ],
)
def test_an_object_of_another_type_is_refused(arguments, says):
    with pytest.raises(TypeError, match=says):
        StreamingDataset(remote="/x", **arguments)


@pytest.mark.parametrize("option", [{"cache_limit": "1gb"}, {"predownload": 8}])
def test_a_limit_of_all_streams_is_not_given_to_one(option):
    with pytest.raises(ValueError, match="are of all streams together"):
        Stream(remote="/x", cache=CacheOptions(**option))


def test_a_streams_own_cache_takes_the_place_of_the_datasets():
    own = CacheOptions(download_retry=5)
    dataset = StreamingDataset(
        streams=[Stream(remote="/a", cache=own), Stream(remote="/b")], cache=CacheOptions(local="/c", download_retry=3)
    )
    first, second = (options.cache for options in dataset._smalti.stream_options)
    assert (first, second.local, second.download_retry) == (own, "/c", 3)
