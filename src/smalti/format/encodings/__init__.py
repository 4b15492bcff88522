"""Encodings: how the values of one column become bytes and come back.

`encoding` holds the base class, `registry` the table of all names; to add an encoding, write a class in a module here
and add one entry to `_BUILT_IN` in `registry`. Users register their own with `register_encoding`. Fast paths for whole
columns and for single samples stand in `smalti.format.writing`; an encoding without one works too. Read `encoding`
first, then `numbers`.
"""
