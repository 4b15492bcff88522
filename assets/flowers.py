"""The data set `flowers`: raw images -> preprocessed DataFrame -> MDS shard set -> trained model.

`FLOWERS` says what the data set is. Each asset is one building block of `smalti_dagster`, with its checks:

    flowers/raw        inventory of the photos: names, labels, sizes; no image is decoded
    flowers/prepared   Spark DataFrame of image (a square JPEG), label, class_name, width, height, split, path
    flowers/shards     version of the shard set in MDS, with the splits train and validation
    flowers/model      classifier trained on one version of the shards, with its checkpoints and curves
"""

import os

import dagster as dg

from assets.drawing import draw_flowers
from smalti_dagster import (
    DataSet,
    build_definitions,
    in_one_step,
    prepared_rows,
    raw_data,
    shard_set,
    trained_model,
)
from smalti_dagster.declaration import Automation, Image, Prepare, Shards, Source, Split, Train

FLOWERS = DataSet(
    name="flowers",
    description="Photos of flowers in five classes; drawn unless FLOWERS_URL names a folder or archive.",
    source=Source(
        folder=os.environ.get("FLOWERS_URL") or None,  # with one sub-folder for each class
        generate=draw_flowers,
        generate_options={"per_class": 160},
    ),
    split=Split(validation=0.2),
    prepare=Prepare(image=Image(size=96, quality=90)),  # upright, cropped to a square, scaled
    shards=Shards(columns={"image": "jpeg", "label": "int", "path": "str"}),
    train=Train(architecture="mobilenet_v2", epochs=30),
    automation=Automation(reshard="0 3 * * *"),
)

raw_images = raw_data(FLOWERS)
preprocessed = prepared_rows(FLOWERS)
shards = shard_set(FLOWERS)
model = trained_model(FLOWERS)


def definitions() -> dg.Definitions:
    """Return the assets with their jobs, schedule and sensors; the first three share one step and Spark session."""
    return build_definitions(FLOWERS, [in_one_step(FLOWERS, raw_images, preprocessed, shards), model])
