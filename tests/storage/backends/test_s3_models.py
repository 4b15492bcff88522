"""The part of botocore's description of S3 that readers use: it makes the same requests as the whole one."""

import json
import os
from itertools import product

import pytest

from smalti.storage.backends import s3_models
from smalti.storage.backends.s3_models import cut, description, loader_of, reader_models

loaders = pytest.importorskip("botocore.loaders")
config = pytest.importorskip("botocore.config")
session = pytest.importorskip("botocore.session")
PLACES = [
    {"region_name": "us-east-1"},
    {"region_name": "eu-central-1"},
    {"region_name": "cn-north-1"},
    {"region_name": "us-gov-west-1"},
    {"region_name": "us-east-1", "endpoint_url": "http://127.0.0.1:9000"},
    {"region_name": "eu-west-1", "use_ssl": False},
    {"region_name": "us-west-2", "config": {"use_fips_endpoint": True, "use_dualstack_endpoint": True}},
    {"region_name": "us-west-2", "config": {"s3": {"addressing_style": "path"}}},
    {"region_name": "us-west-2", "config": {"s3": {"use_accelerate_endpoint": True}}},
    {"region_name": "us-east-1", "config": {"s3": {"us_east_1_regional_endpoint": "regional"}}},
]


@pytest.fixture(scope="module")
def whole():
    return loaders.create_loader()


@pytest.fixture(scope="module")
def kept(whole):
    return json.loads(json.dumps(cut(whole)))  # as from the file


def client_of(loader, place):
    made = session.Session()
    made.register_component("data_loader", loader)
    place = dict(place)
    options = config.Config(signature_version="s3v4", **place.pop("config", {}))
    return made.create_client("s3", config=options, aws_access_key_id="k", aws_secret_access_key="s", **place)


def url_of(client, bucket):
    """Return the address of a read of an object, or the class of the error: some places refuse some buckets."""
    wanted = {"Bucket": bucket, "Key": "a b/ü", "Range": "0-1"}
    try:
        return client.generate_presigned_url("get_object", Params=wanted).partition("?")[0]
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_reader_asks_the_same_addresses_as_a_client_of_the_whole_description(whole, kept, place):
    small, large = client_of(loader_of(kept, whole), place), client_of(whole, place)
    assert small.meta.endpoint_url == large.meta.endpoint_url
    for bucket in ("bucket", "dotted.bucket", "arn:aws:s3:us-west-2:123456789012:accesspoint/point"):
        assert url_of(small, bucket) == url_of(large, bucket)


def test_errors_of_the_store_have_the_same_classes(whole, kept):
    small, large = (client_of(loader, PLACES[0]) for loader in (loader_of(kept, whole), whole))
    for operation in ("GetObject", "HeadObject"):
        models = [client.meta.service_model.operation_model(operation) for client in (small, large)]
        shapes = [[sorted(model.input_shape.members), sorted(model.output_shape.members)] for model in models]
        errors = [[error.name for error in model.error_shapes] for model in models]
        assert (shapes[0], errors[0]) == (shapes[1], errors[1])


def test_the_description_is_read_from_its_file(whole, kept, tmp_path):
    path = tmp_path / "clients" / "s3.json"
    assert json.loads(json.dumps(description(whole, path))) == kept
    data = path.read_bytes()
    assert description(None, path) == kept  # without the whole one: nothing else was read
    assert path.read_bytes() == data


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "folder"])
def test_a_damaged_file_is_made_anew(whole, kept, tmp_path, damage):
    path = tmp_path / "s3.json"
    description(whole, path)
    data = bytearray(path.read_bytes())
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "flipped":
        data[1000] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[:500] if damage == "cut" else b"")
    assert json.loads(json.dumps(description(whole, path))) == kept
    assert path.is_dir() or description(None, path) == kept


@pytest.mark.parametrize("service", ["s3", "sts", "sso", "portal.sso", "oidc"])
def test_hosts_of_s3_and_of_logins_are_the_same_in_every_region(whole, kept, service):
    resolver = pytest.importorskip("botocore.regions").EndpointResolver
    hosts = whole.load_data("endpoints")
    large, small = resolver(hosts), resolver(kept["endpoints"])
    regions = [name for part in hosts["partitions"] for name in part["regions"]] + ["aws-global", "fips-us-east-1"]
    for region, is_dual, is_fips in product(regions, (False, True), (False, True)):
        wanted = {"use_dualstack_endpoint": is_dual, "use_fips_endpoint": is_fips}
        found = [host_of(each, service, region, wanted) for each in (small, large)]
        assert found[0] == found[1], (region, wanted)


def host_of(resolver, service, region, wanted):
    try:
        return resolver.construct_endpoint(service, region, **wanted)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("fault", ["another user's", "writable by all", "a link", "a pipe"])
def test_a_file_that_another_user_could_have_written_is_not_read(whole, kept, tmp_path, monkeypatch, fault):
    path = tmp_path / "s3.json"
    description(whole, path)
    if fault == "another user's":
        path.chmod(0o644)
        monkeypatch.setattr(s3_models.os, "geteuid", lambda: 12345)
        if path.stat().st_uid == 0:  # the superuser's files are read by all
            os.chown(path, 54321, -1)
    elif fault == "writable by all":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "other")
        path.symlink_to(tmp_path / "other") if fault == "a link" else os.mkfifo(path)
    monkeypatch.setattr(s3_models, "cut", lambda _: {"made": "anew"})
    assert description(None, path) == {"made": "anew"}


def test_descriptions_of_other_installations_go_when_they_are_a_month_old(tmp_path):
    old, recent, other = (tmp_path / name for name in ("s3-old.json", "s3-recent.json", "shard"))
    for path in (old, recent, other):
        path.write_bytes(b"x")
    for path in (old, other):
        os.utime(path, (0, 0))
    s3_models._write(tmp_path / "s3-own.json", b"y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s3-own.json", "s3-recent.json", "shard"]


def test_without_a_home_or_with_a_packed_botocore_the_whole_description_is_used(whole, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert json.loads(json.dumps(description(whole, s3_models.Path("~/.cache/s3.json")))) == kept
    assert list(tmp_path.iterdir()) == []

    def packed(_):
        raise FileNotFoundError

    monkeypatch.setattr(s3_models, "cache_file", packed)
    assert type(reader_models.__wrapped__()) is type(whole)
