"""The asset graph, one module per stage with its checks beside it; what an asset does lies in the library."""
