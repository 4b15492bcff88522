"""Smalti and its peers on the same data, side by side, as ratios; never part of the wheel. See README.md."""
