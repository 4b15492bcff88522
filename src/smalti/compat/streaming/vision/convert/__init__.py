"""Scripts that convert data sets of images: `python -m smalti.compat.streaming.vision.convert.imagenet --help`."""
