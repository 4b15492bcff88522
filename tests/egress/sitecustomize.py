"""Run first by every Python that has this folder on PYTHONPATH: the tests' children are watched as they are."""

import egress_guard

egress_guard.watch()
