"""The engine behind MosaicML's classes: streams that are opened, epochs that are planned, and places in epochs.

None of these modules exists in MosaicML Streaming.
"""
