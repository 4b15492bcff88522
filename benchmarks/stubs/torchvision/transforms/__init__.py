"""Only the package of `functional`."""
