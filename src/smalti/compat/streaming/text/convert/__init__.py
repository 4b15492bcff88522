"""Scripts that convert data sets of text: `python -m smalti.compat.streaming.text.convert.pile --help`."""
