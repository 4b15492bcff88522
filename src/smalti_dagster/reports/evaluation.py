"""The evaluation of a model as metadata: the confusion of classes, and the images that it is most wrong about."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import numpy as np

from smalti.dataset import StreamingDataset
from smalti.images import Pixels, resize_square
from smalti_dagster.reports.curves import Curves, curve_picture, curve_teaser, thinned
from smalti_dagster.reports.gallery import THUMBNAIL, captioned
from smalti_dagster.reports.pictures import confusion_map
from smalti_dagster.reports.shown import Metadata
from smalti_dagster.reports.tables import Value, table

HISTORY = "curves_by_epoch"
"""Key of the numbers that the curves of a run are drawn from, which later runs show in grey."""

EARLIER_RUNS = 4
"""Runs before this one that its curves are drawn with."""

Summary = Mapping[str, Any]
"""The figures that the trainer reports at the end of an epoch."""

_CURVES = {"train_loss": "training loss", "loss": "held-out loss", "accuracy": "accuracy"}


def show_curves(history: Sequence[Summary], earlier: Mapping[str, Curves] | None = None) -> Metadata:
    """Return the curves of a run: small, large with those of earlier runs, and as numbers.

    Args:
        history: Its epochs, at least one.
        earlier: Curves of runs before it, newest first, by the text that the legend has for each.
    """
    curves = curves_of(history)
    return {
        "curves": dg.MetadataValue.md(curve_teaser(curves)),
        "curves_picture": dg.MetadataValue.md(curve_picture(curves, earlier)),
        HISTORY: dg.MetadataValue.json(
            {title: [_number(value) for value in thinned(values)] for title, values in curves.items()}
        ),
    }


def curves_of(history: Sequence[Summary]) -> dict[str, list[float]]:
    """Return the curves of a run's epochs, by their titles: the losses, and accuracy or the figures of its task."""
    if "accuracy" in history[-1]:
        return {title: [float(epoch[name]) for epoch in history] for name, title in _CURVES.items()}
    losses = {title: [float(epoch[name]) for epoch in history] for name, title in _CURVES.items() if name in history[0]}
    names = [name for name in history[-1]["metrics"] if name != "loss"]
    return losses | {name: [float(epoch["metrics"][name]) for epoch in history] for name in names}


def kept_curves(kept: Mapping[str, Sequence[float | None]]) -> dict[str, list[float]]:
    """Return the curves of a run from the numbers that its metadata has kept."""
    return {title: [math.nan if value is None else value for value in values] for title, values in kept.items()}


def _number(value: float) -> float | None:
    """Return a value with five digits; None, which JSON has, if a training has diverged."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def show_confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Metadata:
    """Return how well classes are separated: a heat map, the classes by accuracy, and the pairs most often confused.

    Args:
        confusion: Numbers of images by [true class][predicted class]; empty if the model was not evaluated.
        classes: Their names.
    """
    if not len(confusion):
        return {}
    pairs = confused_pairs(confusion, classes)
    return {
        "confusion_picture": dg.MetadataValue.md(confusion_map(confusion, classes)),
        "accuracy_by_class": table(sorted(by_class(confusion, classes), key=lambda row: row["accuracy"])),
        **({"confused_pairs": table(pairs)} if pairs else {}),
    }


def by_class(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return how often each class was recognised, and what it was taken for."""
    rows: list[dict[str, Any]] = []
    for label, answers in enumerate(confusion):
        total = sum(answers)
        wrong = [(count, classes[other]) for other, count in enumerate(answers) if other != label and count]
        rows.append(
            {
                "class": classes[label],
                "images": total,
                "accuracy": round(answers[label] / total, 3) if total else 0.0,
                "taken for": max(wrong)[1] if wrong else "",
            }
        )
    return rows


def confused_pairs(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> list[dict[str, Value]]:
    """Return the pairs of classes that were confused, most often first."""
    counts = np.array(confusion, np.int64)
    np.fill_diagonal(counts, 0)
    true, predicted = np.nonzero(counts)
    order = np.argsort(-counts[true, predicted], kind="stable")
    return [
        {"true": classes[true[at]], "predicted": classes[predicted[at]], "images": int(counts[true[at], predicted[at]])}
        for at in order
    ]


def show_most_wrong(samples: Sequence[Mapping[str, float]], classes: Sequence[str], data: StreamingDataset) -> Metadata:
    """Return the images that a model is most wrong about, with their true and predicted classes and their paths.

    Args:
        samples: What the trainer says about them, the worst first.
        classes: Names of the classes.
        data: The samples that the model was evaluated on.

    Raises:
        SmaltiError: an image cannot be read.
    """
    if not samples:
        return {}
    found = [data[int(each["sample_id"])] for each in samples]
    rows: list[dict[str, Value]] = [
        {
            "path": str(sample.get("path", each["sample_id"])),
            "true": classes[int(each["label"])],
            "predicted": classes[int(each["predicted"])],
            "confidence": f"{each['confidence']:.0%}",
        }
        for each, sample in zip(samples, found, strict=True)
    ]
    captions = [f"{row['true']}\nnot {row['predicted']}, {row['confidence']}" for row in rows]
    return {
        "most_wrong": table(rows),
        "most_wrong_gallery": dg.MetadataValue.md(captioned([_square(each["image"]) for each in found], captions)),
    }


def _square(image: Any) -> Pixels:
    """Return a thumbnail of a stored image, which decodes to one of Pillow."""
    return resize_square(np.asarray(image.convert("RGB")), THUMBNAIL)
