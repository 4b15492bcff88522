"""A job that ends well, and says nothing."""
