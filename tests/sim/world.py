"""A world that one seed decides: actors that take turns, a clock that nobody waits for, replies that get lost.

Every actor is a thread, but only one of them runs at any time: whoever calls the store hands the turn on to whom the
dice say, itself perhaps. So the same seed gives the same run, step by step, of the real code.
"""

import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

DAY = 86_400.0
_PROBE = re.compile("probe-[0-9a-f]{16}")
"""Named by chance, and the only objects that are."""
HANG_SECONDS = 60.0
"""Of real time: after so long without the turn something waits outside this world."""


class Crash(BaseException):
    """SIGKILL: nothing of the actor runs any more, and no handler of `Exception` sees it."""


class Hang(BaseException):
    """The run takes more steps than any honest one."""


@dataclass(frozen=True)
class Rates:
    """How often a call goes wrong, of one."""

    error: float = 0.0
    """Nothing happened, and the caller is told."""
    lost: float = 0.0
    """It happened, and the caller is told that it did not."""
    late: float = 0.0
    """The caller is told that it timed out; it happens later."""
    crash: float = 0.0
    """The caller dies, before or after it happened."""


QUIET = Rates()
WEATHERS = (QUIET, QUIET, Rates(0.02, 0.03, 0.03, 0.01), Rates(0.08, 0.06, 0.06, 0.02), Rates(crash=0.06))

HARD_TO_COMMIT = Rates(0.4, 0.1, 0.4)


@dataclass(eq=False)
class Actor:
    """Somebody who works on the store."""

    name: str
    work: Callable[["Actor"], None]
    skew: float
    """How far off this actor's own clock is, seconds."""
    wakes: float
    """When it may go on, by the world's clock."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    is_ready: Callable[[], bool] = lambda: True
    is_done: bool = False
    lag: float = 0.0
    """How long it is frozen before it creates an object, seconds."""


@dataclass(frozen=True)
class Late:
    """A write that timed out, and happens nevertheless."""

    time: float
    sent: float
    who: str
    key: str
    effect: Callable[[], object]


class World:
    """Actors, their clock and their dice.

    Args:
        seed: Decides everything.
        max_steps: After so many something runs in a circle.
    """

    def __init__(self, seed: int, *, max_steps: int = 4000) -> None:
        self.dice = random.Random(seed)
        self.rates = self.dice.choice(WEATHERS)
        self.rates_of_commits = self.dice.choice((self.rates, self.rates, self.rates, HARD_TO_COMMIT))
        self.stickiness = self.dice.choice((0.0, 0.5, 0.9))
        self.is_conditional = self.dice.random() < 0.7  # whether its store can replace conditionally
        self.now = 1_800_000_000.0
        self.trace: list[str] = []
        self.actors: list[Actor] = []
        self.late: list[Late] = []
        self._left = max_steps
        self._ended = threading.Event()
        self._started: set[Actor] = set()
        self._failure: BaseException | None = None

    def enter(self, name: str, work: Callable[[Actor], None], *, after: float = 0.0) -> Actor:
        """A new actor, who begins so many seconds from now."""
        actor = Actor(name, work, self.dice.uniform(-3, 3) * 3600, self.now + after)
        actor.turn.acquire()
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        """Until nobody has anything left to do, and everything late has happened.

        Raises:
            BaseException: what stopped an actor, but for his death.
        """
        self._hand_on(None)
        if not self._ended.wait(HANG_SECONDS):
            raise TimeoutError("an actor waits for something that is not of this world")
        if self._failure is None:
            self._settle(everything=True)
        else:
            raise self._failure

    def step(self, actor: Actor) -> None:
        """The actor waits for its next turn."""
        if self._failure is not None:
            raise Crash
        self.now += self.dice.uniform(0.0, 0.4)
        self._left -= 1
        if self._left < 0:
            raise Hang("too many steps")
        self._settle()
        if self.dice.random() < self.stickiness and actor.wakes <= self.now and actor.is_ready():
            return
        self._hand_on(actor)

    def sleep(self, actor: Actor, seconds: float) -> None:
        """The actor goes on after so long, or later."""
        actor.wakes = self.now + seconds
        self.step(actor)

    def wait_for(self, actor: Actor, is_ready: Callable[[], bool]) -> None:
        """The actor goes on once this is so."""
        actor.is_ready = is_ready
        self.step(actor)
        actor.is_ready = _always

    def say(self, actor: Actor, text: str) -> None:
        """A line of the trace."""
        self.trace.append(_PROBE.sub("probe", f"{actor.name} {text}"))

    def _settle(self, *, everything: bool = False) -> None:
        """Let happen what is late, as far as its time has come."""
        due = [late for late in self.late if everything or late.time <= self.now]
        self.late = [late for late in self.late if late not in due]
        for late in sorted(due, key=lambda late: late.time):
            late.effect()

    def _choose(self) -> Actor | None:
        while True:
            living = [actor for actor in self.actors if not actor.is_done]
            if not living:
                return None
            ready = [actor for actor in living if actor.wakes <= self.now and actor.is_ready()]
            if ready:
                return self.dice.choice(ready)
            times = [actor.wakes for actor in living if actor.wakes > self.now and actor.is_ready()]
            times += [late.time for late in self.late]
            if not times:
                raise Hang(f"everybody waits: {', '.join(actor.name for actor in living)}")
            self.now = max(self.now, min(times))
            self._settle()

    def _hand_on(self, actor: Actor | None) -> None:
        chosen = self._choose()
        if chosen is actor and actor is not None:
            return
        if chosen is None:
            self._ended.set()
        elif chosen in self._started:
            chosen.turn.release()
        else:
            self._started.add(chosen)
            threading.Thread(target=self._live, args=(chosen,), name=chosen.name, daemon=True).start()
        if actor is not None and not actor.is_done:
            actor.turn.acquire()
            if self._failure is not None:
                raise Crash

    def _live(self, actor: Actor) -> None:
        try:
            actor.work(actor)
        except Crash:
            self.say(actor, "is dead")
        except BaseException as error:  # raised by `run`
            self._stop(error)
        actor.is_done = True
        if self._failure is None:
            try:
                self._hand_on(actor)
            except BaseException as error:  # raised by `run`
                self._stop(error)

    def _stop(self, error: BaseException) -> None:
        """The world ends here; everybody who waits for a turn is let go."""
        if self._failure is not None:
            return
        self._failure = error
        for actor in self._started:
            if not actor.is_done:
                actor.turn.release()
        self._ended.set()


def _always() -> bool:
    return True
