"""See the top package."""
