"""additions."""
