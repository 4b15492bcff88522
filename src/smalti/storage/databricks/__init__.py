"""Files of Databricks workspaces: Unity Catalog volumes and the root of DBFS.

`mount` decides between a mounted folder and the workspace's API; read it first. `volumes` is the fsspec file system
over the API: `files_api` for volumes, `dbfs_api` for everything else, both through the client of `workspace`.
"""
