"""Time as publishing sees it: to wait a little before another try, and for the date that people read.

Nothing is ordered by it, and no age is measured with it: clocks of writers may be hours apart. Whoever simulates
writers hands in a clock of his own.
"""

import time
from datetime import datetime, timezone

from smalti.storage.retry import jitter


class Clock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(timezone.utc)

    def pause(self, seconds: float) -> None:
        """Wait for about so long: half to one and a half times, so that writers who collided do not do it again."""
        time.sleep(seconds * jitter(0.5, 1.5))


SYSTEM = Clock()
