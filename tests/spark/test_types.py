"""What each Spark type is stored as, and what is refused before a row is read."""

import pytest
from pyspark.sql.types import StructType

from smalti.errors import SchemaError
from smalti.spark.types import plan_columns


def schema(text: str) -> StructType:
    return StructType.fromJson(_parse_ddl(text))


def _parse_ddl(text):
    fields = []
    for part in text.split("; "):
        name, kind = part.split(" ", 1)
        fields.append({"name": name, "type": _type(kind), "nullable": True, "metadata": {}})
    return {"type": "struct", "fields": fields}


def _type(kind):
    if kind.startswith("array<"):
        return {"type": "array", "elementType": _type(kind[6:-1]), "containsNull": True}
    if kind == "map":
        return {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}
    if kind == "struct":
        return {"type": "struct", "fields": []}
    return kind


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        ("byte", "int8"),
        ("short", "int16"),
        ("integer", "int32"),
        ("long", "int64"),
        ("float", "float32"),
        ("double", "float64"),
        ("string", "str"),
        ("varchar(10)", "str"),
        ("binary", "bytes"),
        ("decimal(10,2)", "str_decimal"),
        ("array<byte>", "ndarray:int8"),
        ("array<integer>", "ndarray:int32"),
        ("array<long>", "ndarray:int64"),
        ("array<double>", "ndarray:float64"),
        ("array<array<float>>", "ndarray:float32"),
    ],
)
def test_every_type_has_a_lossless_default(kind, encoding):
    assert plan_columns(schema(f"x {kind}"), None) == {"x": encoding}


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("long", "int"),
        ("long", "int32"),
        ("integer", "uint8"),
        ("byte", "str_int"),
        ("double", "float32"),
        ("binary", "jpeg"),
        ("binary", "png"),
        ("boolean", "uint8"),
        ("string", "json"),
        ("map", "json"),
        ("struct", "json"),
        ("array<string>", "json"),
        ("array<float>", "ndarray:float32:3,4"),
        ("array<float>", "ndarray"),
        ("array<integer>", "ndarray:int64"),
    ],
)
def test_what_a_user_may_ask_for(kind, asked):
    assert plan_columns(schema(f"x {kind}"), {"x": asked}) == {"x": asked}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("boolean", "name it in `columns` as uint8"),
        ("timestamp", "cast it to a string or number"),
        ("date", "cast it to a string or number"),
        ("map", "name it in `columns` as json"),
        ("struct", "name it in `columns` as json"),
        ("array<string>", "stored only as JSON"),
        ("array<boolean>", "stored only as JSON"),
        ("void", "cannot be stored"),
    ],
)
def test_a_type_without_a_default_says_what_to_do(kind, says):
    with pytest.raises(SchemaError) as caught:
        plan_columns(schema(f"id long; x {kind}"), None)
    assert says in str(caught.value)
    assert caught.value.column == "x"


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("string", "int"),
        ("long", "float64"),
        ("double", "int64"),
        ("binary", "str"),
        ("string", "jpeg"),
        ("timestamp", "str"),
        ("decimal(10,2)", "float64"),
        ("long", "ndarray"),
    ],
)
def test_an_encoding_that_does_not_fit_is_refused(kind, asked):
    with pytest.raises(SchemaError, match=f"column 'x' .* cannot be stored as '{asked}'"):
        plan_columns(schema(f"x {kind}"), {"x": asked})


@pytest.mark.parametrize("asked", ["int3", "ndarray:int3", "ndarray:float32:0", "pkl", "ndarray:"])
@pytest.mark.parametrize("kind", ["long", "array<float>"])
def test_an_unknown_encoding_is_refused(kind, asked):
    with pytest.raises(SchemaError, match="encoding"):
        plan_columns(schema(f"x {kind}"), {"x": asked})


def test_only_the_columns_asked_for_are_stored():
    assert plan_columns(schema("a long; b string; c timestamp"), {"b": "str", "a": None}) == {"b": "str", "a": "int64"}


def test_a_missing_column_is_refused_with_those_there_are():
    with pytest.raises(SchemaError, match="names 'labl', the DataFrame has label, image"):
        plan_columns(schema("label long; image binary"), {"labl": "int"})


def test_a_column_that_is_there_twice_is_refused():
    with pytest.raises(SchemaError, match="'x' more than once"):
        plan_columns(schema("x long; x string"), None)


def test_columns_that_differ_in_case_alone_are_refused():
    with pytest.raises(SchemaError, match="differ in case"):
        plan_columns(schema("x long; X string"), None)


def test_an_ml_vector_says_how_to_turn_it_into_an_array():
    from pyspark.ml.linalg import VectorUDT

    with pytest.raises(SchemaError, match="vector_to_array"):
        plan_columns(StructType().add("features", VectorUDT()), None)
