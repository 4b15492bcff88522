"""Doors for people who come from elsewhere: the names and arguments that they know, in front of our own parts."""
