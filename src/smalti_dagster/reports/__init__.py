"""Reports that Dagster's UI shows of an asset: galleries, curves and tables, made from plain values."""
