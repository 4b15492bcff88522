"""Errors of tasks are raised on the driver with their type, message and facts."""

import pytest

from smalti.errors import BadImageError, MissingDependency, SchemaError, SmaltiError, StoreNotFound
from smalti.spark.tasks import EncodedError, decode_error, decode_errors, encode_errors


def fail_with(error):
    def task(batches):
        yield from batches
        raise error

    return encode_errors(task)


def test_an_error_keeps_type_message_and_plain_facts():
    original = StoreNotFound("no such key: 'ä' \"b\"", key="x/ä.jpg", size=3, extra=object())
    with pytest.raises(EncodedError) as caught:
        list(fail_with(original)(iter([1])))
    wrapped = f"org.apache.spark.SparkException: Job aborted\nTraceback ...\n{caught.value}\n\tat java.base/..."
    found = decode_error(wrapped)
    assert type(found) is StoreNotFound
    assert str(found) == "no such key: 'ä' \"b\""
    assert (found.key, found.size) == ("x/ä.jpg", 3)


def test_the_driver_raises_the_original_error_with_sparks_as_its_cause():
    with pytest.raises(SchemaError, match="column 'x'") as caught, decode_errors():
        list(fail_with(SchemaError("column 'x': null", column="x"))(iter([])))
    assert isinstance(caught.value.__cause__, EncodedError)


def test_other_errors_pass_unchanged():
    with pytest.raises(ZeroDivisionError), decode_errors():
        list(fail_with(ZeroDivisionError("theirs"))(iter([])))


def test_text_without_a_mark_has_no_error():
    assert decode_error("py4j.protocol.Py4JJavaError: something") is None


def test_an_unknown_type_becomes_the_base_class():
    class NewerError(BadImageError):
        pass

    with pytest.raises(EncodedError) as caught:
        list(fail_with(NewerError("from a newer release"))(iter([])))
    assert type(decode_error(str(caught.value))) is SmaltiError


def test_a_very_long_message_is_truncated_and_can_be_decoded():
    with pytest.raises(EncodedError) as caught:
        list(fail_with(BadImageError("x" * 100_000))(iter([])))
    assert len(str(decode_error(str(caught.value)))) == 16_000


WORKER = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File ...\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ModuleNotFoundError: No module named 'smalti'\n SQLSTATE: 38000",
            "Spark's executors has no module 'smalti': install 'smalti.spark.' on every machine, or set PYSPARK_PYTHON",
        ),
        ("ModuleNotFoundError: No module named 'pandas'", "Spark's executors has no module 'pandas': install"),
        ("ModuleNotFoundError: No module named 'pandas.core'", "Spark's executors has no module 'pandas': install"),
        (
            "pyspark.errors.exceptions.base.PySparkImportError: [PACKAGE_NOT_INSTALLED] Pandas >= 2.2.0 must be "
            "installed; however, it was not found.\n",
            "Spark's executors needs pandas 2.2.0 or later, found none: install",
        ),
        (
            "[UNSUPPORTED_PACKAGE_VERSION] PyArrow >= 15.0.0 must be installed; however, your version is 4.0.1.",
            "Spark's executors needs pyarrow 15.0.0 or later, found 4.0.1: install",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark "
            "cannot run with different minor versions.\nPlease check environment variables ...",
            "Spark's executors run Python 3.12 and this program runs 3.11; .*: set PYSPARK_PYTHON to a Python 3.11 ",
        ),
        (  # PySpark 3.5
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version (3, 12) than that in driver 3.11, PySp",
            "Spark's executors run Python 3.12 and this program runs 3.11; ",
        ),
        (
            'java.io.IOException: Cannot run program "python3": error=2, No such file or directory\n\tat java.base/...',
            "cannot run 'python3' as Python: No such file or directory; install",
        ),
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  Traceback (most recent call last):\n"
            "    File ...\n  SyntaxError: invalid syntax\nPYTHONPATH was:\n  /opt/spark/python\n\tat java.base/...",
            "cannot start a Python worker; .*: SyntaxError: invalid syntax; install",
        ),
    ],
)
def test_a_python_that_cannot_run_tasks_is_reported_with_advice(text, message):
    with pytest.raises(MissingDependency, match=message), decode_errors():
        raise RuntimeError(WORKER + text)


def test_a_package_that_the_driver_lacks_is_not_blamed_on_the_executors():
    text = "[PACKAGE_NOT_INSTALLED] Pandas >= 2.2.0 must be installed; however, it was not found."
    with pytest.raises(ImportError, match="PACKAGE_NOT_INSTALLED"), decode_errors():
        raise ImportError(text)
