"""Sources of raw data: folders, archives, manifests and generated images, and rows of Spark.

Read `images` first; `rows` is the counterpart for tables, queries and DataFrames.
"""
