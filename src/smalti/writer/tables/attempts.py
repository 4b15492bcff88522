"""Attempts at the parts of a write, and their answers.

A part may be written several times: after a failure, or speculatively while a slow attempt runs. Every attempt has a
name of its own, so that no two write to the same place. A version names what one attempt of each part wrote.
"""

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from smalti.errors import SmaltiError


@dataclass(frozen=True)
class Attempt:
    """One attempt to write one part of the rows."""

    task: int
    """Number of the part, such as of a Spark partition; 0-based."""
    attempt: str
    """Eight hex digits that no other attempt has."""

    @classmethod
    def new(cls, task: int) -> "Attempt":
        """Return a new attempt."""
        return cls(task, secrets.token_hex(4))

    @property
    def name(self) -> str:
        """`<task>-<attempt>`, usable in a key."""
        return f"{self.task:05d}-{self.attempt}"


TaskFunction = Callable[[Iterator[Any], Attempt], dict[str, Any]]


Answers = list[tuple[Attempt, dict[str, Any]]]


def check_owner(place: str, ending: str, attempt: Attempt) -> None:
    """Check that what an answer names is where only this attempt writes.

    Args:
        place: Folder of a shard, or key of a file.
        ending: End of the names that the attempt uses.
        attempt: Attempt whose answer it is.

    Raises:
        SmaltiError: It is not there, so that the answer is another one's, whose rows would be published twice.
    """
    if not place.endswith(ending):
        raise SmaltiError(
            f"the answer of task {attempt.task} names {place}, expected a name that ends with {ending}; answers were "
            "exchanged, and nothing was published: run the write again",
            task=attempt.task,
        )


def one_answer_each(answers: Answers) -> Answers:
    """Return the answers in order of their tasks.

    Raises:
        SmaltiError: Two attempts of one task answered; publishing both would duplicate its rows.
    """
    answers = sorted(answers, key=lambda item: (item[0].task, item[0].attempt))
    for (first, _), (second, _) in itertools.pairwise(answers):
        if first.task == second.task:
            raise SmaltiError(
                f"Spark returned two attempts of task {first.task} ({first.attempt} and {second.attempt}); nothing was "
                f"published: run the write again",
                task=first.task,
            )
    return answers
