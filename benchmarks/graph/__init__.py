"""What the measurements of the Dagster graph share: generated pictures, one data set, and a live `dagster dev`."""
