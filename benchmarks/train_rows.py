"""The rows about training: those of issue 18."""

from benchmarks.goals import at_most
from benchmarks.row import Entrant, Row
from benchmarks.training.sets import PHOTOS

_GENERATED = 20_000
_WORLDS = (
    ("inline", 1), ("processes", 1), ("processes", 2), ("spark-local", 1), ("spark-local", 2), ("spark", 1),
    ("spark", 2),
)  # fmt: skip
_NAMES = {"photos": f"{PHOTOS} photos", "jpeg": "generated pictures"}
_MINUTES = {"timeout_s": 600}


def _entrants(worlds: tuple[tuple[str, int], ...], **options: int) -> tuple[Entrant, ...]:
    return tuple(
        Entrant(
            f"{launcher}, {count}",
            "smalti",
            {**_MINUTES, "launcher": launcher, "num_processes": count, **options},
            max_runs=1,
        )
        for launcher, count in worlds
    )


def _whole(workload: str, samples: int, epochs: int, worlds: tuple[tuple[str, int], ...]) -> Row:
    return Row(
        f"train-{workload}", f"train on {_NAMES[workload]}, {epochs} epochs, by launcher and processes", "training",
        workload, "images_per_s", "images/s", _entrants(worlds, epochs=epochs), {},
        more=("seconds", "accuracy", "data_share"), samples=samples,
    )  # fmt: skip


def _paired(workload: str, samples: int) -> Row:
    entrants = _entrants((("inline", 1), ("processes", 2)), rounds=8)
    return Row(
        f"train-memory-{workload}", f"steps over {_NAMES[workload]} of the loader / over batches in memory", "paired",
        workload, "ratio", "x", entrants, {each.label: (at_most(1.03),) for each in entrants}, lower_is_better=True,
        more=("least_ratio", "images_per_s", "memory_images_per_s", "data_share"), samples=samples,
    )  # fmt: skip


_POLICIES = ("default_2t", "default_1t", "passive_2t", "spin-300_2t", "spin-1000_2t", "spin-3000_2t", "spin-10000_2t")

TRAIN_ROWS: tuple[Row, ...] = (
    _whole("photos", PHOTOS, 3, _WORLDS),
    _whole("jpeg", _GENERATED, 1, (("inline", 1), ("processes", 2))),
    _paired("photos", PHOTOS),
    _paired("jpeg", _GENERATED),
    Row(
        "train-threads", "steps with torch's threads waiting in several ways, alone and beside a busy process",
        "threads", "photos", "quiet_spin-1000_2t_images_per_s", "images/s",
        (Entrant("smalti", "smalti", {**_MINUTES, "rounds": 6}, max_runs=1),), {},
        more=tuple(f"{load}_{name}_images_per_s" for load in ("quiet", "busy") for name in _POLICIES), samples=PHOTOS,
    ),
)  # fmt: skip
