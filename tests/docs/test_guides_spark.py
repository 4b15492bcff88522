"""docs/tabular.md: the program that reads its table by Spark writes the set that the page describes."""

from pathlib import Path

import pytest

from smalti import StreamingDataset
from tests.docs.guide import Guide, run_program
from tests.spark.own_session import own_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.torch]


@pytest.fixture(scope="module")
def spark():
    with own_session() as session:
        yield session


def test_the_table_is_converted_by_spark(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Guide("tabular.md").write_files(tmp_path)
    run_program("houses.py")
    program = Path("spark_houses.py").read_text()
    assert '"houses.csv"' in program
    Path("spark_houses.py").write_text(
        program.replace("houses.csv", f"{tmp_path}/houses.csv")
    )  # Java has another folder
    run_program("spark_houses.py")
    assert capsys.readouterr().out.splitlines()[-1] == "2000"
    sizes = [StreamingDataset(remote="from-spark", split=each).size for each in ("train", "validation")]
    assert sum(sizes) == 2000
    assert 1_200 < sizes[0] < 1_900
    assert StreamingDataset(remote="from-spark", split="train", columns=["built"])[0].keys() == {"built"}
