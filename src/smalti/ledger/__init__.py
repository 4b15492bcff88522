"""The ledger of a run: the samples that its ranks took, recorded as they are taken, and the check that reads it.

    folder/life-00001/rank-00000.jsonl    a head; then a line for each pass, each step, and each end of a pass

The package knows neither torch nor how samples are read; the loader records through `smalti.torch.recording`. The check
proves that each planned sample was taken once; the plan comes from `smalti.order`, passed in by the caller. Start
reading at `records` (the lines of a file), then `reading` (which of them count) and `checking`.
"""

from smalti.ledger.checking import Plan, check_ledger
from smalti.ledger.records import PassStart
from smalti.ledger.report import EpochReport, LedgerReport, Problem
from smalti.ledger.sample_order import read_sample_order
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
    "read_sample_order",
]
