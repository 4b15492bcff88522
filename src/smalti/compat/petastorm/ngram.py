"""NGram, which is refused."""

from smalti.compat.petastorm.refused import WINDOWS_INSTEAD, refused_class

NGram = refused_class("NGram", __name__, WINDOWS_INSTEAD)
