"""The formats that `convert` reads, one module each; the table is in `smalti.conversion.registry`."""
