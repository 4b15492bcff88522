"""Predictions by Spark: added to a DataFrame, and to a shard set, by a model that each Python process loads once."""

import pytest
import torch

from smalti.dataset import StreamingDataset
from smalti.inference import predict
from smalti.torch.train import Predictor, TrainConfig
from smalti.torch.train.trainer.task import name_of, save_model
from tests.torch.train.conftest import publish_squares, square, squares, trained
from tests.torch.train.tiny_tasks import Line

__all__ = ["squares", "trained"]
pytestmark = [pytest.mark.torch, pytest.mark.spark, pytest.mark.slow]

NUMBERS = range(1000, 1012)


def test_a_frame_gets_what_the_model_answers_here(spark, trained):
    images = [square(number) for number in NUMBERS]
    expected = Predictor(trained.model_dir)(images)
    rows = [(number, image) for number, image in zip(NUMBERS, images, strict=True)]
    frame = spark.createDataFrame(rows, "`the n` int, image binary").coalesce(1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 2)
    found = predict(trained.model_dir, frame, prefix="p_")
    assert found.columns == ["the n", "image", "p_predicted", "p_predicted_name", "p_confidence"]
    answers = {row["the n"]: row for row in found.collect()}
    assert [answers[number].p_predicted for number in NUMBERS] == expected["predicted"].tolist()
    assert [answers[number].p_predicted_name for number in NUMBERS] == expected["predicted_name"].tolist()
    confidences = [answers[number].p_confidence for number in NUMBERS]
    assert confidences == pytest.approx(expected["confidence"].tolist(), abs=1e-5)


@pytest.mark.nightly
def test_executors_give_a_shard_set_what_the_model_answers_here(spark, trained, tmp_path):
    expected = Predictor(trained.model_dir)([square(number) for number in NUMBERS])
    publish_squares(tmp_path / "set", train=3)
    predict(trained.model_dir, str(tmp_path / "set"), spark=spark)
    samples = list(StreamingDataset(remote=str(tmp_path / "set"), split="validation", batch_size=1))
    assert [each["predicted"] for each in samples[: len(NUMBERS)]] == expected["predicted"].tolist()


@pytest.mark.nightly  # beside `test_a_frame_gets_what_the_model_answers_here`
def test_a_frame_gets_what_a_task_of_the_users_predicts_of_all_columns(spark, tmp_path):
    class Several(Line):  # known nowhere else: it is sent with its code
        def predictions(self, model, batch, config):
            total = batch["a"] + batch["b"]
            return {"total": total, "both": torch.stack([batch["a"], batch["b"]], 1)[:, :, None], "sign": [
                "+" if number > 0 else "-" for number in total.tolist()
            ]}  # fmt: skip

    config = TrainConfig(data="none", run_dir="none", task=name_of(Several()))
    save_model(torch.nn.Linear(2, 1), config, tmp_path / "model", Several())
    frame = spark.createDataFrame([(float(number), 0.5 - number) for number in range(4)], "a double, b double")
    found = predict(
        str(tmp_path / "model"), frame.withColumn("b", frame.b * (frame.a - 1)), task=Several(), prefix="p_"
    )
    assert found.dtypes[2:] == [("p_total", "double"), ("p_both", "array<array<double>>"), ("p_sign", "string")]
    rows = found.orderBy("a").collect()
    assert [row.p_total for row in rows] == [-0.5, 1.0, 0.5, -2.0]
    assert [row.p_sign for row in rows] == ["-", "+", "+", "-"]
    assert rows[3].p_both == [[3.0], [-5.0]]
