"""The ledger of a run: which samples its ranks took, written as it happens, and the proof that each was taken once.

    folder/life-00001/rank-00000.jsonl    a head; then a line for each pass, each step, and each end of a pass

Here: the lines, writing and checking them. Not here: the order (`smalti.order`), which the check may be given.
"""

from smalti.ledger.checking import Plan, check_ledger
from smalti.ledger.records import PassStart
from smalti.ledger.report import EpochReport, LedgerReport, Problem
from smalti.ledger.writing import LedgerWriter, claim_life

__all__ = [
    "EpochReport",
    "LedgerReport",
    "LedgerWriter",
    "PassStart",
    "Plan",
    "Problem",
    "check_ledger",
    "claim_life",
]
