"""Secrets in messages: masked wherever they may stand."""

import pytest

from smalti.storage.redact import redact, safe_cause, secret_values


@pytest.mark.parametrize(
    "text",
    [
        "sftp://me:CANARYSECRET@host/x",
        "GET https://a.blob.core.windows.net/c/k?sv=2024&sig=CANARYSECRET&se=1 failed",
        "https://s3/x?X-Amz-Credential=a&X-Amz-Signature=CANARYSECRET",
        "https://s3/x?X-Amz-Security-Token=CANARYSECRET",
        "headers {'Authorization': 'Bearer CANARYSECRET'}",
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=CANARYSECRET;EndpointSuffix=y",
        "the option was CANARYSECRET",
    ],
)
def test_secrets_are_masked_and_the_rest_stays(text):
    found = redact(text, ["CANARYSECRET"] if "option" in text else [])
    assert "CANARY" not in found
    assert "***" in found
    assert found.split("***")[0] in text


def test_databricks_tokens_are_masked():
    assert redact("token dapi0123456789abcdef0 refused") == "token dapi*** refused"


def test_harmless_text_is_untouched():
    for text in (
        "s3://bucket/train/shard.00000.mds",
        "no such key: a=b&c=d",
        "abfs://c@account.dfs.core.windows.net/p",
    ):
        assert redact(text) == text


def test_secret_options_are_found_by_name_also_nested():
    options = {
        "key": "AKIDAKID",
        "region": "eu-west-1",
        "client_kwargs": {"aws_secret_access_key": "longsecret"},
        "anon": False,
    }
    assert secret_values(options) == ("longsecret", "AKIDAKID")


def test_a_cause_that_shows_a_secret_is_replaced():
    inner = ValueError("url https://x?sig=CANARYSECRET")
    outer = OSError("failed")
    outer.__cause__ = inner
    assert "CANARY" not in str(safe_cause(outer))
    assert safe_cause(outer) is not outer
    harmless = OSError("plain")
    assert safe_cause(harmless) is harmless
