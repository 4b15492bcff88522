"""The assets of a declared data set: a builder for each stage, and one for the checks of each.

Read `declaration` first, then `stage` and the modules of `stages`. What an asset does lies in the library; jobs,
schedules and sensors are in `pipelines`.
"""
