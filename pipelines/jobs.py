"""The jobs: what a person, the schedule and the sensors launch. An asset's checks run with it."""

import dagster as dg

RESHARD_ASSETS = ("raw_images", "preprocessed_images", "mds_shards")
TRAIN_ASSETS = ("trained_model",)

reshard_job = dg.define_asset_job(
    "reshard_job",
    selection=dg.AssetSelection.assets(*RESHARD_ASSETS),
    description="Reads the images again and publishes a new version of the shard set if anything changed.",
)

train_job = dg.define_asset_job(
    "train_job",
    selection=dg.AssetSelection.assets(*TRAIN_ASSETS),
    description="Trains a model from the newest version of the shard set, or from the one that is pinned.",
)

everything_job = dg.define_asset_job(
    "everything_job",
    selection=dg.AssetSelection.assets(*RESHARD_ASSETS, *TRAIN_ASSETS),
    description="From images to a trained model.",
)
