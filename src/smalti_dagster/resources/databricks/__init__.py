"""Functions of this code location as jobs on Databricks, through Dagster Pipes.

`compute` is the resource, read it first; `jobs` speaks the Jobs API, `messages` carries the Pipes session in a volume,
`code` packs this code as a wheel, and `entry` is what runs on the cluster.
"""
