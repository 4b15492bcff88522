"""A deterministic simulation: actors that take turns, a simulated clock, and lost or late replies, all from one seed.

Every actor is a thread, but only one of them runs at any time: each call of the store passes the turn to an actor that
is chosen at random, possibly the same one. So the same seed gives the same run of the real code, step by step.
"""

import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

DAY = 86_400.0
_PROBE = re.compile("probe-[0-9a-f]{16}")
"""The only objects whose names are random."""
HANG_SECONDS = 60.0
"""Real time without progress after which a thread must be waiting for something outside the simulation."""


class Crash(BaseException):
    """The simulated SIGKILL of an actor; handlers of `Exception` do not catch it."""


class Hang(BaseException):
    """The error of a run with more steps than a correct one can take."""


@dataclass(frozen=True)
class Rates:
    """Probabilities of faults of a call."""

    error: float = 0.0
    """The call has no effect and raises an error."""
    lost: float = 0.0
    """The call takes effect and raises an error."""
    late: float = 0.0
    """The call raises a timeout and takes effect later."""
    crash: float = 0.0
    """The caller is killed, before or after the effect."""


QUIET = Rates()
RATES = (QUIET, QUIET, Rates(0.02, 0.03, 0.03, 0.01), Rates(0.08, 0.06, 0.06, 0.02), Rates(crash=0.06))

HARD_TO_COMMIT = Rates(0.4, 0.1, 0.4)


@dataclass(eq=False)
class Actor:
    """A simulated process that uses the store."""

    name: str
    work: Callable[["Actor"], None]
    skew: float
    """Error of this actor's own clock, seconds."""
    wakes: float
    """Simulated time from which on it may continue."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    is_ready: Callable[[], bool] = lambda: True
    is_done: bool = False
    lag: float = 0.0
    """Seconds for which it is suspended before it creates an object."""


@dataclass(frozen=True)
class Late:
    """A write that timed out and takes effect later."""

    time: float
    sent: float
    who: str
    key: str
    effect: Callable[[], object]


class World:
    """The actors, the simulated clock and the random generator.

    Args:
        seed: Determines the whole run.
        max_steps: Number of steps after which the run is considered an endless loop.
    """

    def __init__(self, seed: int, *, max_steps: int = 4000) -> None:
        self.dice = random.Random(seed)
        self.rates = self.dice.choice(RATES)
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
        """Add an actor that starts after this number of seconds."""
        actor = Actor(name, work, self.dice.uniform(-3, 3) * 3600, self.now + after)
        actor.turn.acquire()
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        """Run until all actors are done and all late writes have taken effect.

        Raises:
            BaseException: the error that stopped an actor, except a simulated kill.
        """
        self._pass_turn(None)
        if not self._ended.wait(HANG_SECONDS):
            raise TimeoutError("an actor waits for something outside the simulation")
        if self._failure is None:
            self._apply_late(everything=True)
        else:
            raise self._failure

    def step(self, actor: Actor) -> None:
        """Wait for the next turn of the actor."""
        if self._failure is not None:
            raise Crash
        self.now += self.dice.uniform(0.0, 0.4)
        self._left -= 1
        if self._left < 0:
            raise Hang("too many steps")
        self._apply_late()
        if self.dice.random() < self.stickiness and actor.wakes <= self.now and actor.is_ready():
            return
        self._pass_turn(actor)

    def sleep(self, actor: Actor, seconds: float) -> None:
        """Suspend the actor for at least this time."""
        actor.wakes = self.now + seconds
        self.step(actor)

    def wait_for(self, actor: Actor, is_ready: Callable[[], bool]) -> None:
        """Suspend the actor until the condition holds."""
        actor.is_ready = is_ready
        self.step(actor)
        actor.is_ready = _always

    def log(self, actor: Actor, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(_PROBE.sub("probe", f"{actor.name} {text}"))

    def _apply_late(self, *, everything: bool = False) -> None:
        """Apply the late writes that are due."""
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
                raise Hang(f"all actors wait: {', '.join(actor.name for actor in living)}")
            self.now = max(self.now, min(times))
            self._apply_late()

    def _pass_turn(self, actor: Actor | None) -> None:
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
            self.log(actor, "is dead")
        except BaseException as error:  # raised by `run`
            self._stop(error)
        actor.is_done = True
        if self._failure is None:
            try:
                self._pass_turn(actor)
            except BaseException as error:  # raised by `run`
                self._stop(error)

    def _stop(self, error: BaseException) -> None:
        """End the simulation with this error, and release all waiting threads."""
        if self._failure is not None:
            return
        self._failure = error
        for actor in self._started:
            if not actor.is_done:
                actor.turn.release()
        self._ended.set()


def _always() -> bool:
    return True
