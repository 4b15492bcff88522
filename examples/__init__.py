"""Programs to read and to copy; each says at its top how it is run."""
