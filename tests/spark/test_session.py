"""Sessions of Spark, and tasks with one answer each."""

import gc
import os
import subprocess
import sys

import pytest

from smalti.process import use_driver_python
from smalti.spark.session import SparkOptions, build_session
from smalti.spark.tasks import make_frame, run_tasks
from smalti.writer.tables.plan import Attempt, one_answer_each

pytestmark = pytest.mark.spark


def test_the_session_is_bound_to_this_machine_and_shows_no_ui(spark):
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_an_executor_in_the_drivers_process_does_not_end_it(spark):
    assert spark.conf.get("spark.executor.heartbeat.maxFailures") == "2147483647"


def test_executors_run_the_python_of_the_driver(spark):
    def interpreter(batches):
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"path": [sys.executable]})

    found = spark.range(1).mapInArrow(interpreter, "path string").collect()[0]["path"]
    assert os.path.realpath(found) == os.path.realpath(sys.executable)


@pytest.fixture
def bare_session(spark):
    """Yield a session as PySpark itself makes it, whose workers run the `python3` of PATH."""
    before = spark.sparkContext.pythonExec
    spark.sparkContext.pythonExec = "python3"
    yield spark
    spark.sparkContext.pythonExec = before


def test_on_a_local_master_tasks_run_the_python_of_the_driver_in_sessions_of_the_user(bare_session):
    run_tasks(bare_session.range(1), lambda batches, attempt: {})
    assert bare_session.sparkContext.pythonExec == sys.executable


def test_make_frame_uses_the_python_of_the_driver(bare_session):
    assert make_frame(bare_session, [(7,)], "x int").collect()[0]["x"] == 7
    assert bare_session.sparkContext.pythonExec == sys.executable


@pytest.mark.parametrize("chosen", ["PYSPARK_PYTHON", "session", "cluster"])
def test_a_python_that_the_user_chose_stays(bare_session, monkeypatch, chosen):
    context = bare_session.sparkContext
    if chosen == "PYSPARK_PYTHON":
        monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    elif chosen == "cluster":
        monkeypatch.setattr(context, "master", "spark://10.0.0.1:7077")
    else:
        context.pythonExec = "/opt/theirs/bin/python"
    before = context.pythonExec
    use_driver_python(bare_session)
    assert context.pythonExec == before


def test_a_running_session_is_returned_unchanged(spark):
    assert build_session(SparkOptions(master="local[1]")) is spark


@pytest.mark.nightly  # takes two JVMs
@pytest.mark.process
def test_a_session_whose_java_was_killed_is_replaced():
    program = (
        "from pyspark import SparkContext\n"
        "from smalti.spark import SparkOptions, build_session\n"
        "options = SparkOptions(master='local[1]', driver_memory='512m')\n"
        "first = build_session(options)\n"
        "SparkContext._gateway.proc.kill()\n"
        "SparkContext._gateway.proc.wait(60)\n"
        "second = build_session(options)\n"
        "print(second is not first, second.range(3).count(), build_session(options) is second)\n"
        "second.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.split() == ["True", "3", "True"], done.stderr


def test_starting_leaves_no_trace_in_the_environment(spark):
    assert "SPARK_LOCAL_IP" not in os.environ
    assert "PYSPARK_PYTHON" not in os.environ


def test_arrow_batches_are_limited_in_bytes_on_sessions_of_the_user(spark):
    """A frame of 40 MB in one partition comes in batches of about 2 MiB, and the setting is restored."""
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    before = spark.conf.get(name)
    spark.conf.unset(name)

    def largest(batches, attempt):
        return {"bytes": max(batch.nbytes for batch in batches)}

    frame = spark.range(0, 400, 1, 1).selectExpr("cast(repeat('x', 100000) as binary) as data")
    ((_, answer),) = run_tasks(frame, largest)
    assert answer["bytes"] < 4 << 20
    spark.conf.set(name, before)


def test_after_a_task_a_workers_modules_are_excluded_from_garbage_collection(spark):
    """Spark's daemon collects garbage after every task, which takes 80 ms if modules are included."""
    frame = spark.range(0, 2, 1, 2)

    def count_frozen(batches, attempt):
        return {"rows": sum(batch.num_rows for batch in batches), "frozen": gc.get_freeze_count()}

    run_tasks(frame, count_frozen)
    run_tasks(frame, count_frozen)
    answers = [answer for _, answer in run_tasks(frame, count_frozen)]
    assert sum(answer["rows"] for answer in answers) == 2
    assert max(answer["frozen"] for answer in answers) > 10_000


def test_two_answers_for_one_task_are_refused():
    from smalti.errors import SmaltiError

    twice = [(Attempt(0, "aaaaaaaa"), {}), (Attempt(1, "bbbbbbbb"), {}), (Attempt(1, "cccccccc"), {})]
    with pytest.raises(SmaltiError, match="two attempts of task 1"):
        one_answer_each(twice)


def test_answers_come_in_order_of_their_tasks():
    answers = [(Attempt(2, "a"), {"n": 2}), (Attempt(0, "b"), {"n": 0}), (Attempt(1, "c"), {"n": 1})]
    assert [answer["n"] for _, answer in one_answer_each(answers)] == [0, 1, 2]


@pytest.mark.process
def test_the_package_can_be_imported_without_spark():
    code = "import sys, smalti.spark; print(sorted({'pyspark', 'pandas', 'torch', 'py4j'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.nightly  # beside tests/rules/test_readme.py, which compares what is printed
@pytest.mark.process
@pytest.mark.slow
def test_a_session_is_quiet():
    """The only output on a user's terminal is the JVM's line about an incubating module."""
    code = (
        "from smalti.spark.session import *\n"
        "from smalti.spark.tasks import run_tasks\n"
        "s = build_session(SparkOptions(master='local[1]', driver_memory='512m'))\n"
        "print(run_tasks(s.range(2), lambda batches, attempt: {'rows': sum(b.num_rows for b in batches)})[0][1])\n"
        "s.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout == "{'rows': 2}\n"
    lines = [line for line in done.stderr.splitlines() if "incubator" not in line]
    assert lines == []
