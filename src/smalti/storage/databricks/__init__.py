"""databricks."""
