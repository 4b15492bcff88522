"""The writer and the readers of Petastorm's pickled schema, all refused."""

from smalti.compat.petastorm.refused import READ_INSTEAD, WRITE_INSTEAD, refused_function


class PetastormMetadataError(Exception):
    """Petastorm's error for a data set without a schema; never raised here."""


class PetastormMetadataGenerationError(Exception):
    """Petastorm's error for a schema that cannot be written; never raised here."""


materialize_dataset = refused_function("materialize_dataset", WRITE_INSTEAD)
load_row_groups = refused_function("load_row_groups", READ_INSTEAD)
get_schema = refused_function("get_schema", READ_INSTEAD)
get_schema_from_dataset_url = refused_function("get_schema_from_dataset_url", READ_INSTEAD)
infer_or_load_unischema = refused_function("infer_or_load_unischema", READ_INSTEAD)
