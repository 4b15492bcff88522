"""prepared."""
