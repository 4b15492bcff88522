"""Petastorm's writer of data sets with codecs, which is refused: the names can be imported, and raise when called."""
