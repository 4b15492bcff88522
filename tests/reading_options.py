"""Options of StreamingDataset by their plain names, for helpers that take any of them."""

from dataclasses import fields

from smalti.cache import CacheOptions
from smalti.dataset import OrderOptions

_OF_CACHE = {field.name for field in fields(CacheOptions)}
_OF_ORDER = {field.name for field in fields(OrderOptions)}


def grouped(**options):
    """Return the constructor's arguments, with the fields of CacheOptions and OrderOptions in such objects."""
    cache = {name: options.pop(name) for name in _OF_CACHE & options.keys()}
    order = {name: options.pop(name) for name in _OF_ORDER & options.keys()}
    if cache:
        options["cache"] = CacheOptions(**cache)
    if order:
        options["order"] = OrderOptions(**order)
    return options
