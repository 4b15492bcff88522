"""DataSet: the component that turns a declaration into a family of assets, checks, jobs, a schedule and sensors."""

import re
import warnings

import dagster as dg
from pydantic import BaseModel, Field, PrivateAttr
from typing_extensions import Self

from smalti_dagster.blocks import build_definitions
from smalti_dagster.declaration import Declaration

# Dagster's own, about each schedule, sensor and job of a declaration with `owners`, most of them while it loads a job.
warnings.filterwarnings("ignore", message="Parameter `owners` of", category=dg.BetaWarning)


class DataSetParameters(BaseModel):
    """Parameters of `dg scaffold defs smalti_dagster.DataSet`."""

    name: str = Field(default="", description="Name of the data set; by default that of the folder.")
    folder: str = Field(default="", description="Folder or archive of images with one sub-folder per class.")
    table: str = Field(default="", description="Name of a table in the Spark catalogue, or address of its folder.")
    table_format: str = Field(
        default="", description="Format of a table given by its address: delta, parquet, csv, ..."
    )


class DataSetScaffolder(dg.Scaffolder[DataSetParameters]):
    """The file that `dg scaffold defs smalti_dagster.DataSet NAME` writes: a name, and a source.

    Without a source, the file has one to replace: a declaration is valid before its source is there.
    """

    @classmethod
    def get_scaffold_params(cls) -> type[DataSetParameters]:
        """Return the parameters that the command takes as options or JSON."""
        return DataSetParameters

    def scaffold(self, request: dg.ScaffoldRequest[DataSetParameters]) -> None:
        """Write the `defs.yaml` of a new data set."""
        params: DataSetParameters | None = request.params
        given = params if params is not None else DataSetParameters()
        if given.table:
            source = {"table": given.table, **({"format": given.table_format} if given.table_format else {})}
        else:
            source = {"folder": given.folder or "s3://bucket/a-folder-with-one-sub-folder-per-class"}
        name = re.sub(r"[^a-z0-9_]", "_", (given.name or request.target_path.name).lower())
        dg.scaffold_component(request, {"name": name, "source": source})


@dg.scaffold_with(DataSetScaffolder)
class DataSet(dg.Component, Declaration):
    """A data set: raw data, preprocessed rows, an MDS shard set, and a trained model.

    Asset keys are `<name>/source`, `<name>/raw`, `<name>/prepared`, `<name>/shards` and `<name>/model`, in a group of
    the same name. In Python, functions and classes are given as they are where YAML has `module:name`.

    Examples:
        ```python
        photos = DataSet(name="photos", source=Source(folder="s3://bucket/photos"), split=Split(validation=0.1))
        defs = build_definitions(photos)
        ```
    """

    _declared_in: str = PrivateAttr("a program")

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component that a file declares, and remember the file."""
        loaded = super().load(attributes, context)
        loaded._declared_in = str(context.component_path.file_path)
        return loaded

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of this data set.

        Raises:
            DagsterInvalidDefinitionError: another file of the project declares a data set of this name.
        """
        same = [other for other in context.component_tree.get_all_components(DataSet) if other.name == self.name]
        if len(same) > 1:
            places = " and ".join(sorted(other._declared_in for other in same))
            raise dg.DagsterInvalidDefinitionError(
                f"{len(same)} data sets are named {self.name!r}, in {places}: rename all but one, or delete their files"
            )
        return build_definitions(self)
