"""The definitions of this repository's code location, loaded once."""

from pipelines import definitions

defs = definitions.defs()
