"""All guides: what a reader finds in each of them."""

import re

import pytest

from tests.docs.guide import Guide

_QUESTION = re.compile(r"^\*\*[^*\n]+\*\* \S", re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [
        "azure.md",
        "dagster.md",
        "databricks.md",
        "from-huggingface.md",
        "from-litdata.md",
        "from-webdataset.md",
        "kubernetes.md",
        "mosaicml.md",
        "multimodal.md",
        "petastorm.md",
        "production.md",
        "s3.md",
        "slurm.md",
        "sources.md",
        "tabular.md",
    ],
)
def test_a_guide_ends_with_three_to_five_questions(name):
    _, mark, questions = Guide(name).text.rpartition("\n## ")
    assert mark
    assert questions.startswith("Questions\n")
    assert 3 <= len(_QUESTION.findall(questions)) <= 5
