"""Errors of tasks arrive on the driver as what they were."""

import pytest

from smalti.errors import BadImageError, MissingDependency, SchemaError, SmaltiError, StoreNotFound
from smalti.spark.failures import CarriedError, carried, surfaced, unpack


def fail_with(error):
    def task(batches):
        yield from batches
        raise error

    return carried(task)


def test_an_error_keeps_type_message_and_plain_facts():
    original = StoreNotFound("no such key: 'ä' \"b\"", key="x/ä.jpg", size=3, extra=object())
    with pytest.raises(CarriedError) as caught:
        list(fail_with(original)(iter([1])))
    wrapped = f"org.apache.spark.SparkException: Job aborted\nTraceback ...\n{caught.value}\n\tat java.base/..."
    found = unpack(wrapped)
    assert type(found) is StoreNotFound
    assert str(found) == "no such key: 'ä' \"b\""
    assert (found.key, found.size) == ("x/ä.jpg", 3)


def test_the_driver_raises_the_original_with_sparks_as_its_cause():
    with pytest.raises(SchemaError, match="column 'x'") as caught, surfaced():
        list(fail_with(SchemaError("column 'x': null", column="x"))(iter([])))
    assert isinstance(caught.value.__cause__, CarriedError)


def test_errors_of_others_pass_unchanged():
    with pytest.raises(ZeroDivisionError), surfaced():
        list(fail_with(ZeroDivisionError("theirs"))(iter([])))


def test_text_without_a_mark_is_no_error_of_ours():
    assert unpack("py4j.protocol.Py4JJavaError: something") is None


def test_an_unknown_type_becomes_the_base_class():
    class NewerError(BadImageError):
        pass

    with pytest.raises(CarriedError) as caught:
        list(fail_with(NewerError("from a newer release"))(iter([])))
    assert type(unpack(str(caught.value))) is SmaltiError


def test_a_very_long_message_stays_a_mark_that_can_be_read():
    with pytest.raises(CarriedError) as caught:
        list(fail_with(BadImageError("x" * 100_000))(iter([])))
    assert len(str(unpack(str(caught.value)))) == 16_000


def test_executors_without_the_package_are_recognised():
    text = "PythonException: ... ModuleNotFoundError: No module named 'smalti'\n SQLSTATE: 38000"
    with pytest.raises(MissingDependency, match="Spark's executors has no module 'smalti'"), surfaced():
        raise RuntimeError(text)
