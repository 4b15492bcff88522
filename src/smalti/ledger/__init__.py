"""The ledger of a run: the samples that its ranks took, recorded as they are taken, and the check that reads it.

    folder/life-00001/rank-00000.jsonl    a head; then a line for each pass, each step, and each end of a pass
                      rank-00000.jsonl.1  and its continuation, of a long file that was put to a store in segments

A life is one start of the run, a pass one iteration over an epoch or the rest of one. The package knows neither torch
nor how samples are read; the loader records through `smalti.torch.loader`. The check proves that each planned sample
was taken once; the caller passes in the plan, from `smalti.order`. Start reading at `records` (the lines of a file),
then `reading` (the part of them that counts) and `checking`.
"""

from smalti.ledger.checking import Plan, check_ledger
from smalti.ledger.reading import EpochReport, LedgerReport, Problem, read_sample_order
from smalti.ledger.records import LedgerWriter, PassStart, SkippedSample, claim_life

__all__ = [
    "EpochReport",
    "LedgerReport",
    "LedgerWriter",
    "PassStart",
    "Plan",
    "Problem",
    "SkippedSample",
    "check_ledger",
    "claim_life",
    "read_sample_order",
]
