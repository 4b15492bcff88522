"""The fault store as a server for any protocol: its fault hits every request."""

from tests.faultstore import FaultStore, Toxic


def planted(mode, *, times=None):
    """Return a fault store with one fault: a status, "drop" (no reply), "reset", "cut" (half a body) or "hang"."""
    kinds = {
        "drop": Toxic("lost_ack", count=times),
        "reset": Toxic("reset_peer", count=times),
        "cut": Toxic("truncate", after=5, count=times),
        "hang": Toxic("latency", seconds=60, count=times),
    }
    return FaultStore(Toxic("http", status=mode, count=times) if isinstance(mode, int) else kinds[mode])
