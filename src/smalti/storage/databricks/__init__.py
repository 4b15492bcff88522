"""Files of Databricks workspaces: Unity Catalog volumes and the root of DBFS.

`mount` decides between a mounted folder and the workspace's API; read it first. `volumes` is the fsspec file system
over the APIs of volumes and of DBFS (`api`), whose requests go through the client of `workspace`.
"""
