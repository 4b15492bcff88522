"""Sources of raw data: folders, archives, manifests and generated images, and rows of Spark.

Read `images` first; `rows` is the counterpart for tables, queries and DataFrames: `unchanged` decides whether they have
to be read, `functions` are those of the user, and `row_shards` writes the rows.
"""
