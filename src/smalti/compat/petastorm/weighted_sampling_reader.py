"""WeightedSamplingReader, which is refused."""

from smalti.compat.petastorm.refused import MIX_INSTEAD, refused_class

WeightedSamplingReader = refused_class("WeightedSamplingReader", __name__, MIX_INSTEAD)
