"""Lists of comparisons choose what they say, in Python and on a command line, and refuse what cannot be compared."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow.compute as pc
import pytest

from smalti.errors import SchemaError
from smalti.writer.predicate import ArrowExpression, Ids, as_filters, parse_filters

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


def rows_of(filters):
    return np.flatnonzero(filters.mask({name: BATCH[name] for name in filters.columns_of(tuple(BATCH))}, 3)).tolist()


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ([("a", "==", 2)], [1]),
        ([("a", "=", np.int64(2))], [1]),
        ([("a", "=", 2.0)], [1]),
        ([("a", ">=", 2), ("flag", "==", True)], [2]),
        ([[("a", "==", 1)], [("a", "==", 2), ("flag", "==", False)]], [0, 1]),
        ([("a", "in", [1, 3, 77])], [0, 2]),
        ([("a", "in", [])], []),
        ([("a", "not in", {1, 3})], [1]),
        ([("a", "<", -1)], []),
        ([("big", "==", 2**63 + 5)], [2]),
        ([("big", "in", (2**63 + 5, 1))], [0, 2]),
        ([("text", "==", "it's")], [0]),
        ([("text", "!=", "it's")], [1]),
        ([("text", "not in", ["it's"])], [1]),
        ([("price", ">", 1.4)], [0, 2]),
        ([("price", "<=", 1)], []),
        ([("exact", "==", Decimal("1.1"))], [0]),
        ([("exact", "in", [Decimal("1.1"), Decimal("2.205")])], [0]),
        ([("half", "==", 1.5)], [1]),
        ([("born", ">=", "2021-01-01")], [1, 2]),
        ([("born", "in", [datetime.date(2021, 1, 1), "2022-01-01"])], [1, 2]),
        ([("seen", "<", np.datetime64("2021-01-01T13"))], [0, 1]),
        ([("raw", "==", b"\x00")], [0]),
        ([("odd name", "!=", 8)], [0, 2]),
        ([("nothing", "==", 3)], []),
        ([("nothing", "not in", [3])], []),
    ],
    ids=str,
)
def test_comparisons_choose_what_they_say(where, rows):
    assert rows_of(as_filters(where)) == rows


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["a=2"], [1]),
        (["a == 2"], [1]),
        (["a>=2", "flag=true"], [2]),
        (["text=it's"], [0]),
        (["text!=Anna B"], [0]),
        (["price>1.4"], [0, 2]),
        (["exact=1.1"], [0]),
        (["born<2021-01-01"], [0]),
        (["seen>=2021-01-01 12:00:00"], [1, 2]),
        (["raw=a"], [1]),
        (["odd name<=7"], [0]),
        (["big=9223372036854775813"], [2]),
        (["text="], []),
        (["text=a=b<c"], []),
    ],
    ids=str,
)
def test_words_of_a_command_line_are_read_as_the_types_of_their_columns(words, rows):
    assert rows_of(parse_filters(words)) == rows


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ([], "expected a list of comparisons such as"),
        ([[]], "expected a list of comparisons such as"),
        ("a == 2", "`where` is 'a == 2'; expected a list of comparisons such as"),
        (("a", "==", 2), "expected a list of comparisons such as"),
        (3, "`where` is 3; expected a list"),
        ([("a", 2)], r"`where` is \('a', 2\); expected"),
        ([(1, "==", 2)], "expected a list of comparisons"),
        ([("a", "like", "x")], "column 'a': 'like' is no operator; expected one of ==, =, !="),
        ([("a", "in", 3)], "column 'a': `in` needs a list of values"),
        ([("a", "==", [3])], "column 'a': `==` needs one value"),
        ([("a", "==", None)], r"choose nulls by the expression pyarrow.compute.field\('a'\).is_null\(\)"),
        ([("a", "in", [1, None])], "nothing is equal to null"),
        ([("other", "==", 1)], "there is no column 'other'; the columns are a, big"),
        ([("a", "==", "x")], "holds int32, which cannot be compared with 'x'"),
        ([("a", "==", True)], "holds int32, which cannot be compared with True"),
        ([("a", "<", 1.5)], "holds int32, which cannot be compared with 1.5"),
        ([("a", "==", 99999999999)], "holds int32, and 99999999999 is no value of it"),
        ([("text", ">", 3)], "holds string, which cannot be compared with 3"),
        ([("exact", ">", 1.1)], "cannot be compared with 1.1"),
        ([("born", "==", "yesterday")], "and 'yesterday' is no value of it"),
        ([("born", "==", 3)], "cannot be compared with 3"),
        ([("vector", "==", 1)], "arrays, images or nested values"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(where, message):
    with pytest.raises(SchemaError, match=message):
        rows_of(as_filters(where))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("", "expected COLUMN=VALUE"),
        ("a", "expected COLUMN=VALUE, or one of != < <= > >= in place of =, found 'a'"),
        ("=3", "expected COLUMN=VALUE"),
        ("a ! 3", "expected COLUMN=VALUE"),
        ("text == 'Anna'", "text: the value 'Anna' has quotes of its own; write text==Anna"),
        ("a=x", "column 'a' holds int32, and 'x' is no value of it"),
        ("a=", "column 'a' holds int32, and '' is no value of it"),
        ("a=1.5", "holds int32, and '1.5' is no value of it"),
        ("flag=maybe", "holds bool, and 'maybe' is no value of it"),
        ("exact=abc", "and 'abc' is no value of it"),
        ("text=\udcff", "is no value of it"),
    ],
)
def test_a_word_that_cannot_be_meant_is_refused(word, message):
    with pytest.raises(SchemaError, match=message):
        rows_of(parse_filters([word]))


def test_the_expression_that_is_advised_for_nulls_chooses_them():
    expression = ArrowExpression(pc.field("text").is_null())
    assert expression.mask({"text": BATCH["text"]}, 3).tolist() == [False, False, True]


def test_filters_are_shown_as_they_are_meant_and_long_values_are_cut():
    groups = [[("a", "in", [1, 2]), ("b", "==", "x")], [("c", "<", 3)]]
    assert str(as_filters(groups)) == "a in (1, 2) and b == 'x' or c < 3"
    assert str(parse_filters(["a=1", "b=x y"])) == "a = 1 and b = x y"
    assert len(str(as_filters([("a", "in", list(range(100_000)))]))) < 80


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
    assert ids.num_missing() == 1, "77"
    assert Ids("text", ["it's", None]).mask(BATCH, 3).tolist() == [True, False, False]
    assert Ids("raw", [b"a"]).mask(BATCH, 3).tolist() == [False, True, False]
    assert Ids("a", []).mask(BATCH, 3).tolist() == [False, False, False]
    assert Ids("a", [2**40]).mask(BATCH, 3).tolist() == [False, False, False], "no such value can be there"
    for column, values in (("price", [1]), ("born", ["2020-01-01"]), ("vector", [1])):
        with pytest.raises(SchemaError, match="neither whole numbers nor text"):
            Ids(column, values).mask(BATCH, 3)
    with pytest.raises(SchemaError, match="'x' among the ids is none"):
        Ids("a", ["x"]).mask(BATCH, 3)
