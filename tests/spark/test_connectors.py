"""Spark's connectors to stores: settings for given credentials, and what to do where a connector is missing."""

import pytest

from smalti.errors import MissingDependency
from smalti.spark import hadoop_settings
from smalti.spark.tasks import decode_errors

A3 = "org.apache.hadoop.fs.s3a."
AT = "lake.dfs.core.windows.net"
SETTINGS = [
    (
        "s3://lake/photos",
        {"key": "me", "secret": "s", "client_kwargs": {"region_name": "eu-west-1"}},
        {
            "fs.s3.impl": A3 + "S3AFileSystem",
            "fs.s3a.aws.credentials.provider": A3 + "SimpleAWSCredentialsProvider",
            "fs.s3a.access.key": "me",
            "fs.s3a.secret.key": "s",
            "fs.s3a.endpoint.region": "eu-west-1",
        },
    ),
    (
        "s3://lake/photos",
        {"key": "me", "secret": "s", "token": "t", "endpoint_url": "http://minio:9000"},
        {
            "fs.s3.impl": A3 + "S3AFileSystem",
            "fs.s3a.aws.credentials.provider": A3 + "TemporaryAWSCredentialsProvider",
            "fs.s3a.access.key": "me",
            "fs.s3a.secret.key": "s",
            "fs.s3a.session.token": "t",
            "fs.s3a.endpoint": "http://minio:9000",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
        },
    ),
    ("s3://lake/photos", {}, {"fs.s3.impl": A3 + "S3AFileSystem"}),
    (
        "s3://lake/photos",
        {"anon": True},
        {
            "fs.s3.impl": A3 + "S3AFileSystem",
            "fs.s3a.aws.credentials.provider": A3 + "AnonymousAWSCredentialsProvider",
        },
    ),
    (
        "gs://lake/photos",
        {"token": "/keys/me.json", "project": "p"},
        {
            "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
            "fs.gs.auth.service.account.json.keyfile": "/keys/me.json",
        },
    ),
    ("gs://lake/photos", {"token": "anon"}, {"fs.gs.auth.type": "UNAUTHENTICATED"}),
    ("gs://lake/photos", {}, {}),
    ("abfs://c/photos", {"account_name": "lake", "account_key": "k=="}, {f"fs.azure.account.key.{AT}": "k=="}),
    ("abfs://c@lake.dfs.core.windows.net/p", {"account_key": "k=="}, {f"fs.azure.account.key.{AT}": "k=="}),
    (
        "abfs://c/photos",
        {"connection_string": "DefaultEndpointsProtocol=https;AccountName=lake;AccountKey=k==;EndpointSuffix=x"},
        {f"fs.azure.account.key.{AT}": "k=="},
    ),
    (
        "abfs://c/photos",
        {"account_name": "lake", "sas_token": "?sv=1"},
        {f"fs.azure.account.auth.type.{AT}": "SAS", f"fs.azure.sas.fixed.token.{AT}": "sv=1"},
    ),
    (
        "abfs://c/photos",
        {"account_name": "lake", "tenant_id": "t", "client_id": "i", "client_secret": "s"},
        {
            f"fs.azure.account.auth.type.{AT}": "OAuth",
            f"fs.azure.account.oauth.provider.type.{AT}": (
                "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
            ),
            f"fs.azure.account.oauth2.client.id.{AT}": "i",
            f"fs.azure.account.oauth2.client.secret.{AT}": "s",
            f"fs.azure.account.oauth2.client.endpoint.{AT}": "https://login.microsoftonline.com/t/oauth2/token",
        },
    ),
    ("abfs://c/photos", {"anon": False}, {}),
    ("/data/photos", {}, {}),
    ("dbfs:/Volumes/a/b/c", {"token": "t"}, {}),
]


@pytest.mark.parametrize(("url", "options", "expected"), SETTINGS)
def test_connectors_get_the_credentials_that_the_library_has(url, options, expected):
    assert hadoop_settings(url, options) == expected


def test_a_session_hands_the_settings_on_to_hadoop(spark):
    for name, value in hadoop_settings("s3://lake/photos", {"key": "me", "secret": "s"}).items():
        spark.conf.set(name, value)
    try:
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        assert hadoop.get("fs.s3a.access.key") == "me"
    finally:
        for name in hadoop_settings("s3://lake/photos", {"key": "me", "secret": "s"}):
            spark.conf.unset(name)


@pytest.mark.parametrize(
    ("form", "address", "package"),
    [
        ("csv", "s3://lake/x.csv", "org.apache.hadoop:hadoop-aws"),
        ("csv", "s3a://lake/x.csv", "org.apache.hadoop:hadoop-aws"),
        ("parquet", "gs://lake/x", "org.apache.hadoop:hadoop-gcp"),
        ("parquet", "abfs://c@lake.dfs.core.windows.net/x", "org.apache.hadoop:hadoop-azure"),
        ("delta", "/lake/x", "io.delta:delta-spark_2.13"),
        ("iceberg", "/lake/x", "org.apache.iceberg:iceberg-spark-runtime"),
        ("no_such", "/lake/x", "check the name"),
    ],
)
def test_a_missing_connector_names_the_package_and_the_setting(spark, form, address, package):
    with pytest.raises(MissingDependency) as caught, decode_errors():
        spark.read.format(form).load(address)
    assert package in caught.value.message
    assert "`spark.jars.packages`" in caught.value.message
    assert "\n" not in caught.value.message
