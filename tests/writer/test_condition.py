"""Conditions in text choose what they say, and refuse what they cannot compare."""

from decimal import Decimal

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import SchemaError
from smalti.writer.condition import parse_condition
from smalti.writer.predicate import ArrowExpression, Ids

BATCH = {
    "a": np.array([1, 2, 3], np.int32),
    "big": np.array([1, 2, 2**63 + 5], np.uint64),
    "text": ["it's", "Anna B", None],
    "price": np.ma.MaskedArray(np.array([1.5, 2, 3], np.float32), [False, True, False]),
    "exact": [Decimal("1.10"), Decimal("2.20"), None],
    "half": np.array([0.5, 1.5, 2.5], np.float16),
    "born": np.array(["2020-01-01", "2021-01-01", "2022-01-01"], "M8[D]"),
    "seen": np.array(["2020-01-01T12", "2021-01-01T12", "2022-01-01T12"], "M8[us]"),
    "flag": np.array([True, False, True]),
    "raw": [b"\x00", b"a", None],
    "odd name": np.array([7, 8, 9]),
    "vector": np.zeros((3, 2)),
    "nothing": [None, None, None],
}


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("a == 2", [1]),
        ("a = 2 or a = 3", [1, 2]),
        ("a = 1 or a = 2 and flag", [0]),
        ("(a = 1 or a = 2) and not flag", [1]),
        ("a in (1, 3,)", [0, 2]),
        ("a not in (1, 3)", [1]),
        ("a > 1.5", [1, 2]),
        ("a < -1", []),
        ("a == a", [0, 1, 2]),
        ("big == 9223372036854775813", [2]),
        ("text == 'it''s'", [0]),
        ('text == "it\'s"', [0]),
        ("text like 'Anna %'", [1]),
        ("text ilike 'anna__'", [1]),
        ("text not like 'Anna %'", [0]),
        ("text is null", [2]),
        ("text is not null AND NOT a > 1", [0]),
        ("price > 1.4", [0, 2]),
        ("not price > 1.4", []),
        ("exact == 1.1", [0]),
        ("half == 1.5", [1]),
        ("born >= '2021-01-01'", [1, 2]),
        ("seen < '2021-01-01 13:00:00'", [0, 1]),
        ("flag", [0, 2]),
        ("flag == false", [1]),
        ("raw == x'00'", [0]),
        ("`odd name` != 8", [0, 2]),
        ("nothing == 3 or nothing like 'x' or nothing", []),
        ("nothing is null", [0, 1, 2]),
    ],
)
def test_a_condition_chooses_what_it_says(condition, rows):
    parsed = parse_condition(condition)
    names = parsed.columns_of(tuple(BATCH))
    assert np.flatnonzero(parsed.mask({name: BATCH[name] for name in names}, 3)).tolist() == rows


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("", "expected a column at character 1, found the end"),
        ("a ==", "expected a number, a text in quotes, true or false at character 5"),
        ("a == 1 b", "expected the end, `and` or `or` at character 8, found 'b'"),
        ("a in ()", "expected a number, a text in quotes"),
        ("a in (1", r"expected `\)`"),
        ("a == null", "write `is null`"),
        ("a is 3", "expected `null`"),
        ("a not 3", "expected `in` or `like`"),
        ("a ; drop", "cannot be read from character 3 on"),
        ("a == __import__('os')", "expected the end"),
        ("'x' == a", "expected a column"),
        ("text like 3", "`like` needs a text"),
        ("(" * 101 + "a" + ")" * 101, "nested more than 100 deep"),
        ("other == 1", "there is no column 'other'; the columns are a, big"),
        ("a == 'x'", "holds int32, which cannot be compared with 'x'"),
        ("a == 99999999999", "outside of it"),
        ("text > 3", "holds string, which cannot be compared with 3"),
        ("a like 'x'", "holds int32 and no text"),
        ("a", "holds int32 and no booleans"),
        ("born == 'yesterday'", "outside of it"),
        ("vector == 1", "arrays, images or nested values"),
    ],
)
def test_what_cannot_be_meant_is_refused(condition, message):
    with pytest.raises(SchemaError, match=message):
        parsed_mask(condition)


def parsed_mask(condition):
    parsed = parse_condition(condition)
    return parsed.mask({name: BATCH[name] for name in parsed.columns_of(tuple(BATCH))}, 3)


@given(st.text(alphabet=" ()=<>!,'\"`andoritkelsxu0123.%\\-\n", max_size=40))
def test_any_text_is_parsed_or_refused(text):
    try:
        parsed = parse_condition(text)
    except SchemaError:
        return
    assert parsed.root.names()


def test_an_expression_of_arrow_names_its_columns():
    expression = ArrowExpression((pc.field("a") > 1) & pc.field("text").is_valid())
    assert expression.columns_of(tuple(BATCH)) == ("a", "text")
    assert expression.mask({name: BATCH[name] for name in ("a", "text")}, 3).tolist() == [False, True, False]
    with pytest.raises(SchemaError, match="No match for FieldRef"):
        ArrowExpression(pc.field("other") > 1).columns_of(("a",))


def test_ids_are_looked_up_as_numbers_or_text():
    ids = Ids("a", ["2", 77])
    chosen = ids.mask(BATCH, 3)
    assert chosen.tolist() == [False, True, False]
    assert ids.missing(ids.values_in(BATCH, chosen)) == ("77",)
    assert Ids("text", ["it's", None]).mask(BATCH, 3).tolist() == [True, False, False]
    assert Ids("raw", [b"a"]).mask(BATCH, 3).tolist() == [False, True, False]
    assert Ids("a", []).mask(BATCH, 3).tolist() == [False, False, False]
    assert Ids("a", [2**40]).mask(BATCH, 3).tolist() == [False, False, False], "no such value can be there"
    for column, values in (("price", [1]), ("born", ["2020-01-01"]), ("vector", [1])):
        with pytest.raises(SchemaError, match="neither whole numbers nor text"):
            Ids(column, values).mask(BATCH, 3)
    with pytest.raises(SchemaError, match="'x' among the ids is none"):
        Ids("a", ["x"]).mask(BATCH, 3)
