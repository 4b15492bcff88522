"""Scripts that convert data sets of images from local files.

`python -m smalti.compat.streaming.vision.convert.imagenet --help`
"""
