"""The asset checks, by subject; each builder takes a declaration and gives the checks of one asset."""
