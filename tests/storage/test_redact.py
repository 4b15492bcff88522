"""Secrets are masked anywhere in a message."""

import gc
import weakref

import pytest

from smalti.errors import StoreNotFound, TrainingError
from smalti.redaction import (
    address_secrets,
    has_login,
    redact,
    redact_address,
    redact_message,
    secret_values,
    word_secrets,
)
from smalti.storage import open_store
from smalti.storage.redact import detect_secrets, safe_cause


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
        "no bucket at s3:/KEY:CANARYSECRET@bucket",
        "s3://KEY:CANARY/SECRET@bucket/x",
        "http://me:CANARY@SECRET@host/x",
        "https://CANARYSECRET@host/x",
        "https://host/x#sig=CANARYSECRET",
        "https://host/x?key=CANARYSECRET",
        "GET /x%3Fa=1%26sig%3DCANARYSECRET",
        "token=CANARYSECRET",
    ],
)
def test_secrets_are_masked_and_the_rest_stays(text):
    found = redact(text, ["CANARYSECRET"] if "option" in text else [])
    assert "CANARY" not in found
    assert "***" in found
    assert found.split("***")[0] in text


@pytest.mark.parametrize(
    "text",
    [
        "f(secret='CANARY SECRET', b=1)", "{'aws_secret_access_key': 'CANARYSECRET'}", '{"password": "CANARYSECRET"}',
        "https://host/x;token=CANARYSECRET;v=2", "https://host/x?CANARYSECRET", "s3://bucket/x#CANARYSECRET",
        "hf://CANARYSECRET@datasets/owner/name", "foo://CANARYSECRET@host/x", "no s3:/KEY:CANARYSECRET@bucket: there",
        "https://host/x?y=CANARYSECRET: no query",
    ],
)  # fmt: skip
def test_a_message_is_redacted_and_not_changed_when_it_is_redacted_again(text):
    once = redact_message(text)
    assert "CANARY" not in once
    assert "***" in once
    assert redact_message(once) == once


def test_the_address_of_help_below_an_error_keeps_its_anchor_in_the_message_of_another_error():
    log = "Help: https://github.com/smalti/smalti/blob/main/docs/troubleshooting.md#storenotfound\ns3://bucket/x#CANARY"
    assert str(TrainingError(log)) == (
        "Help: https://github.com/smalti/smalti/blob/main/docs/troubleshooting.md#storenotfound\ns3://bucket/x#***"
    )


def test_secrets_of_a_command_line_are_found():
    words = ["show", "s3://user:PASSWORD@bucket/x", "--storage-option", "secret:HIDDEN", "--token=LONGTOKEN", "a=b"]
    assert set(word_secrets([*words, "https://host/x?y=QUERYSECRET#FRAGMENT"])) == {
        "user:PASSWORD", "PASSWORD", "HIDDEN", "LONGTOKEN", "QUERYSECRET", "QUERYSECRET#FRAGMENT", "y=QUERYSECRET",
        "y=QUERYSECRET#FRAGMENT", "FRAGMENT",
    }  # fmt: skip


def test_a_long_text_is_redacted_in_a_time_that_grows_with_its_length():
    assert redact_message("a:/" * 100_000) == "a:/" * 100_000


def test_databricks_tokens_are_masked():
    assert redact("token dapi0123456789abcdef0 refused") == "token dapi*** refused"


def test_harmless_text_is_untouched():
    for text in (
        "s3://bucket/train/shard.00000.mds",
        "no such key: a=b&c=d",
        "abfs://c@account.dfs.core.windows.net/p",
        "sftp://me@host:22/p",
        "hf://datasets/owner/name@main/p",
        "https://host:8080/p@2x.png",
        "oci://bucket@space/p#1",
        "/data/token=1/key=2",
    ):
        assert redact(text) == text


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/a:b@c/x", "s3://bucket/a%3Ab%40c", "hf://datasets/owner/name@main/a:b@c", "sftp://me@host:22/p:x@y",
        "abfs://container@account.dfs.core.windows.net/p:x@y", "dbfs:/Volumes/a:b@c/x", "file:///a:b@c",
        "https://host:8080/p@2x.png", "/data/run:1@2/x", "localhost:8080/a@b",
    ],
)  # fmt: skip
def test_a_colon_and_an_at_sign_in_a_path_are_not_a_login(address):
    assert redact_address(address) == address
    assert not has_login(address)


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN",
        "DATABRICKS_PASSWORD", "DATABRICKS_OIDC_TOKEN", "ARM_CLIENT_SECRET", "GOOGLE_CREDENTIALS",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SYSTEM_ACCESSTOKEN",
    ],
)  # fmt: skip
def test_secrets_in_the_environment_are_masked(monkeypatch, name):
    monkeypatch.setenv(name, "CANARYSECRET")
    assert redact("the server said: CANARYSECRET is over", detect_secrets()) == "the server said: *** is over"


def test_an_address_is_shown_without_query_and_fragment():
    assert redact_address("https://host/x.tgz?whatever=CANARY") == "https://host/x.tgz?***"
    assert redact_address("https://host/x.tgz#CANARY?x") == "https://host/x.tgz#***"
    assert redact_address("https://me:CANARY@host/x.tgz") == "https://***@host/x.tgz"
    assert redact_address("dbfs:/Volumes/c/x?token=CANARY") == "dbfs:/Volumes/c/x?***"
    assert redact_address("a folder/what?.tgz") == "a folder/what?.tgz"
    assert redact_address("s3://bucket/x") == "s3://bucket/x"


def test_all_parts_of_a_query_are_secrets_unless_the_path_contains_them():
    address = "https://host/archives/x.tgz?id=archives&sig=a%2Bbcdefgh&se=1#fragment"
    assert "archives" not in address_secrets(address)
    assert set(address_secrets(address)) >= {
        "id=archives&sig=a%2Bbcdefgh&se=1#fragment", "id=archives&sig=a+bcdefgh&se=1#fragment", "id=archives",
        "sig=a%2Bbcdefgh", "sig=a+bcdefgh", "a%2Bbcdefgh", "a+bcdefgh", "fragment",
    }  # fmt: skip


def test_secret_options_are_found_by_name_and_in_nested_options():
    options = {
        "key": "AKIDAKID",
        "region": "eu-west-1",
        "client_kwargs": {"aws_secret_access_key": "longsecret"},
        "anon": False,
    }
    assert secret_values(options) == ("longsecret", "AKIDAKID")


def test_a_cause_that_contains_a_secret_is_replaced():
    inner = ValueError("url https://x?sig=CANARYSECRET")
    outer = OSError("failed")
    outer.__cause__ = inner
    assert "CANARY" not in str(safe_cause(outer))
    assert safe_cause(outer) is not outer
    harmless = OSError("plain")
    assert safe_cause(harmless) is harmless


def test_an_error_of_a_store_is_freed_without_a_collection_once_it_is_handled():
    """In a cycle with its traceback it would keep the frames of all callers, and what these hold, such as loaders."""
    store = open_store("memory://freed-errors/set")
    gc.disable()
    try:
        try:
            store.get("missing")
        except StoreNotFound as error:
            handled = weakref.ref(error)
        assert handled() is None
    finally:
        gc.enable()
