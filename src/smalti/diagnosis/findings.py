"""Findings of a diagnosis, and the checks that make them: bounded by deadlines and run side by side."""

import enum
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from smalti.errors import StoreTimeout
from smalti.redaction import redact, redact_message
from smalti.storage.redact import detect_secrets
from smalti.storage.retry import call_within


class State(str, enum.Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    """Work is possible, but slower or riskier than it could be."""
    FAULT = "fault"
    """Something does not work."""
    SKIPPED = "skipped"
    """Not checked: not installed, not asked for, or something before it does not work."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    """Subject, such as `java` or `credentials`."""
    state: State
    found: str
    """One line, without secrets."""
    to_do: str = ""
    """Remedy; empty if there is nothing to do."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", redact_message(self.found))


@dataclass(frozen=True)
class Diagnosis:
    """The findings about this machine, and about one place if there was one."""

    url: str
    """Address of the place, without secrets; "" for none."""
    findings: tuple[Finding, ...]
    seconds: float
    """Time that all checks took together."""

    @property
    def ok(self) -> bool:
        """True if there is no fault; warnings do not count."""
        return all(each.state is not State.FAULT for each in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings by state."""
        found = Counter(each.state for each in self.findings)
        return {state.value: found[state] for state in State}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values of JSON."""
        rows = [{**asdict(each), "state": each.state.value} for each in self.findings]
        return {"url": self.url, "ok": self.ok, "counts": self.counts, "seconds": self.seconds, "findings": rows}


Check = tuple[str, Callable[[], Iterable[Finding]], float, str]
"""Name of a check, or of several that depend on each other; a function that yields findings, of which those before a
timeout count; its time limit, seconds; advice if it does not end within the limit."""


def run_checks(checks: Sequence[Check], on_check: Callable[[int, int], None] | None = None) -> list[Finding]:
    """Run all checks side by side, each within its limit, and return their findings in the order of the checks.

    `on_check` is called with (done, total) after each.
    """
    with ThreadPoolExecutor(max(1, len(checks)), thread_name_prefix="smalti-diagnosis") as pool:
        running = [pool.submit(_findings_of, check) for check in checks]
        for done, _ in enumerate(as_completed(running), 1):
            if on_check is not None:
                on_check(done, len(checks))
    return [finding for each in running for finding in each.result()]


def _findings_of(check: Check) -> list[Finding]:
    name, run, seconds, on_timeout = check
    findings: list[Finding] = []

    def collect() -> None:
        for finding in run():
            findings.append(finding)  # noqa: PERF402 -- one by one: those before a timeout count

    begun = time.monotonic()
    try:
        call_within(seconds, collect)
    except Exception as error:  # noqa: BLE001 -- a finding, too
        if isinstance(error, StoreTimeout) and time.monotonic() - begun >= seconds:
            return [*findings, Finding(name, State.FAULT, f"no answer within {seconds:.0f} s", on_timeout)]
        text = f"{type(error).__name__}: {one_line(error)}"
        remedy = "the check itself failed: an installed package may be broken; please report it with this output"
        return [*findings, Finding(name, State.FAULT, text, remedy)]
    return findings


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line, without secrets."""
    return " ".join(redact(str(error), detect_secrets()).split())


def finding_of(check: str, error: BaseException) -> Finding:
    """Return the fault for an error of the library, whose message consists of the fact and the remedy."""
    found, advice = split_message(one_line(error))
    return Finding(check, State.FAULT, found, advice or "check the address")


def split_message(text: str) -> tuple[str, str]:
    """Return the fact and the remedy of a message of the library: sentences, or clauses with ";" between them. Pure."""
    found, *rest = re.split(r"; |\. (?=[A-Z])", text, maxsplit=1)
    return found, "".join(rest)
