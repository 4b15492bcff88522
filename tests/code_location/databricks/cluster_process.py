"""A cluster that runs a wheel task: it looks up the entry point in the wheel's metadata, and calls it."""

import sys
from importlib.metadata import distribution

name = sys.argv.pop(1)
[entry] = [each for each in distribution("smalti").entry_points if each.name == name]
entry.load()()
