"""Reading of Petastorm's data sets as an RDD, which is refused."""

from smalti.compat.petastorm.refused import READ_INSTEAD, refused_function

dataset_as_rdd = refused_function("dataset_as_rdd", READ_INSTEAD)
