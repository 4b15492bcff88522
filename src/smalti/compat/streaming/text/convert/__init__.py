"""Scripts that convert data sets of text from local files.

`python -m smalti.compat.streaming.text.convert.pile --help`
"""
