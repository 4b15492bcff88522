"""Images of a materialisation as metadata: made from files, or taken over from the materialisation before."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from assets.reports.gallery import gallery, image_teaser


def show_images(examples: Mapping[str, Sequence[bytes]]) -> dict[str, dg.MetadataValue]:
    """Return a teaser and a gallery of images, given by group."""
    return {
        "samples": dg.MetadataValue.md(image_teaser([images[0] for images in examples.values()])),
        "gallery": dg.MetadataValue.md(gallery(examples)),
    }


def shown_again(facts: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Return what a materialisation of the same images shows, so that none of them is read again."""
    return {name: dg.MetadataValue.md(str(facts[name])) for name in ("samples", "gallery") if name in facts}
