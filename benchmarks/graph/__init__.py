"""Shared parts of the measurements of the Dagster graph: generated pictures, one data set, and a live `dagster dev`."""
