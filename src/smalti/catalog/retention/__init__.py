"""Removal of objects that no version needs: `vacuum`, its rules, and the markers of writes in progress.

Read `vacuum` for the protocol; the rules for what is kept and what goes are all in `sweep`.
"""
