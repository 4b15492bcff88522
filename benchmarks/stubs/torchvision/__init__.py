"""A stand-in that can be imported: MosaicML Streaming's vision module asks for names; no measured path calls them."""
