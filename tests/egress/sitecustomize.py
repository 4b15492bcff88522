"""Start the guard in every Python that has this folder on PYTHONPATH, so in all children of the tests."""

import egress_guard

egress_guard.watch()
