"""Faults planted in a machine, a store and a cache folder: each is found, with what to do about it."""

import json
import sys
import threading
from collections import namedtuple
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from smalti.diagnosis import State, diagnose
from smalti.diagnosis.doctor import (
    PlaceFacts,
    check_gpu,
    check_java,
    check_locks,
    check_packages,
    check_place,
    check_room,
)
from smalti.diagnosis.findings import Finding, run_checks
from tests.faults.test_f_bound import in_namespace
from tests.shard_sets import write_set
from tests.storage.servers.s3_server import policy_for

pytestmark = pytest.mark.slow


def faults(findings):
    return [each for each in findings if each.state is State.FAULT]


def the_fault(findings, check):
    """Return the only fault, which must be of this check and have a remedy."""
    (found,) = faults(findings)
    assert found.check == check
    assert found.to_do
    return found


def the_warning(findings, check):
    (found,) = [each for each in findings if each.state is State.WARNING]
    assert found.check == check
    assert found.to_do
    return found


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(home, version):
    return executable(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2").parent.parent


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment without Java and without a choice of Python for Spark."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    return monkeypatch


@pytest.fixture
def plant_package(monkeypatch, tmp_path):
    """Return a function that makes a package appear to be installed in some version, before all others."""

    def plant(name, version, files=()):
        site = tmp_path / "site"
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for path, text in dict(files).items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))

    return plant


# ------------------------------------------------------------------------------------------------ Java


def test_no_java(bare):
    fault = the_fault(check_java(()), "java")
    assert "found: none" in fault.found
    assert "apt-get install" in fault.to_do or "brew install" in fault.to_do


def test_a_java_that_is_too_new_for_the_installed_spark(bare, tmp_path, plant_package):
    plant_package("pyspark", "4.0.1")
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "java25", "25.0.1")))
    fault = the_fault(check_java(()), "java")
    assert "Spark 4.0.1 does not start on it" in fault.found
    assert "Java 17 or 21" in fault.to_do


# ------------------------------------------------------------------------------------------------ packages and torch


def test_a_package_that_does_not_fit(plant_package):
    plant_package("numpy", "3.1.0")
    fault = the_fault(check_packages(), "packages")
    assert fault.found == "numpy 3.1.0; smalti needs numpy<3,>=1.26"
    assert fault.to_do == "pip install 'numpy<3,>=1.26'"


def test_databricks_connect_beside_pyspark(plant_package):
    plant_package("databricks-connect", "16.4.0")
    assert "pip uninstall" in the_fault(check_packages(), "packages").to_do


FOR_CPUS = """
class version:
    cuda = hip = None
class cuda:
    is_available = device_count = lambda: 0
"""


def test_a_torch_without_gpus_in_a_machine_with_two(plant_package, tmp_path, monkeypatch):
    plant_package("torch", "2.99.0+cpu", {"torch/__init__.py": FOR_CPUS})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).mkdir(parents=True)
    fault = the_fault(check_gpu(tmp_path), "gpu")
    assert fault.found == "2 of NVIDIA in this machine, but torch 2.99.0+cpu is a build for the CPU"


def test_a_driver_that_torch_cannot_use(plant_package, tmp_path, monkeypatch):
    broken = "raise ImportError('libcuda.so.1: the driver is too old')\n"
    plant_package("torch", "2.99.0", {"torch/__init__.py": broken})
    (tmp_path / "dev" / "nvidia0").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    fault = the_fault(check_gpu(tmp_path), "gpu")
    assert "the driver is too old" in fault.found


# ------------------------------------------------------------------------------------------------ the store


def look(url, options=None, *, write=False):
    return list(check_place(url, options, PlaceFacts(), write=write))


def test_the_client_package_of_the_store_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert the_fault(look("s3://bucket/set"), "address").to_do == "pip install 'smalti[s3]'"


def test_no_credentials(guarded_server, clean_environment):
    fault = the_fault(look("s3://free-any/set", {"endpoint_url": guarded_server.http}), "data set")
    assert "no credentials were found" in fault.found
    assert "AWS_ACCESS_KEY_ID" in fault.to_do


def test_a_wrong_secret_key(guarded_server, guarded_bucket, clean_environment):
    clean_environment.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-canary")
    findings = look(f"s3://{guarded_bucket}/set", {"endpoint_url": guarded_server.http})
    assert "SignatureDoesNotMatch" in the_fault(findings, "data set").found
    assert "environment variable AWS_ACCESS_KEY_ID" in next(x.found for x in findings if x.check == "credentials")
    assert "canary" not in f"{findings}"


def test_a_bucket_that_does_not_exist(guarded_server, guarded_bucket):
    fault = the_fault(look("s3://free-no-such-bucket/set", {"endpoint_url": guarded_server.http}), "bucket")
    assert "no bucket" in fault.found


def test_rights_to_read_without_the_right_to_write(guarded_server, guarded_bucket):
    url, options = f"s3://{guarded_bucket}/set", {"endpoint_url": guarded_server.http}
    write_set(url, 30, storage_options=options)
    rights = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}],
    }
    with guarded_server.unguarded():
        iam = guarded_server.admin("iam")
        iam.create_user(UserName="reader")
        made = iam.create_access_key(UserName="reader")["AccessKey"]
        iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=policy_for("*", rights))
    reader = options | {"key": made["AccessKeyId"], "secret": made["SecretAccessKey"]}
    assert faults(look(url, reader)) == []
    fault = the_fault(look(url, reader, write=True), "write")
    assert "create: not allowed" in fault.found
    assert "s3:PutObject" in fault.to_do


# ------------------------------------------------------------------------------------------------ the data set


def test_a_place_without_a_shard_set(tmp_path):
    assert "check the address" in the_warning(look(tmp_path / "nothing"), "data set").to_do


def test_a_set_on_a_web_server_is_read_without_a_listing(tmp_path, clean_environment):
    write_set(tmp_path / "set", 30)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        states = {each.check: each.state for each in look(f"http://127.0.0.1:{server.server_port}/set", write=True)}
        server.shutdown()
    assert states["list"] is states["write"] is State.SKIPPED
    assert states["data set"] is State.OK


def test_trying_to_write_leaves_no_folder(tmp_path):
    assert faults(look(tmp_path / "new" / "set", write=True)) == []
    assert list(tmp_path.iterdir()) == []


def test_an_address_with_a_typo():
    assert "unknown scheme 's4'" in the_fault(look("s4://bucket/set"), "address").found


# ------------------------------------------------------------------------------------------------ the cache folder


def test_locks_that_do_not_lock(tmp_path):
    fault = the_fault(check_locks(tmp_path, held=lambda path: False), "cache locks")
    assert "do not exclude" in fault.found
    assert list(tmp_path.iterdir()) == []


ON_SMALL_DISKS = """
import json, resource, subprocess, sys
from pathlib import Path
from smalti.catalog import load_manifest
from smalti.diagnosis.doctor import check_machine, check_room
root = Path(sys.argv[1])
for name, options in {"full": "size=64k", "small": "size=200m"}.items():
    (root / name).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", root / name], check=True)
with (root / "full" / "filler").open("wb", 0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
findings = [*check_room(root / "full", None), *check_machine(root / "small")]
print(json.dumps([[each.check, each.state.value, each.found, each.to_do] for each in findings]))
"""


def test_disks_that_are_full_or_small(tmp_path):
    found = in_namespace(ON_SMALL_DISKS, str(tmp_path))
    space, files, shared = found
    assert space[:2] == ["cache space", "fault"]
    assert "smalti cache clear" in space[3]
    assert files[:2] == ["open files", "warning"]
    assert "ulimit -n" in files[3]
    assert shared[:2] == ["shared memory", "warning"]
    assert "--shm-size" in shared[3]


Space = namedtuple("Space", "total used free")


def test_a_set_that_is_larger_than_the_disk(tmp_path, monkeypatch):
    facts = PlaceFacts()
    write_set(tmp_path / "set", 30)
    list(check_place(tmp_path / "set", None, facts))
    needed = sum(shard.raw.num_bytes for shard in facts.manifest.shards)
    monkeypatch.setattr("smalti.diagnosis.doctor.MIN_BYTES", 0)
    monkeypatch.setattr("shutil.disk_usage", lambda path: Space(needed, 1, needed - 1))
    assert "cache_limit=" in the_warning(check_room(tmp_path, facts.manifest), "cache space").to_do
    monkeypatch.setattr("shutil.disk_usage", lambda path: Space(needed, needed, 10))
    assert "while fetched" in the_fault(check_room(tmp_path, facts.manifest), "cache space").found


# ------------------------------------------------------------------------------------------------ all together


def test_a_check_that_hangs_or_breaks_is_a_finding_and_stops_no_other():
    def hangs():
        yield Finding("first", State.OK, "fine")
        threading.Event().wait(300)

    def breaks():
        raise ZeroDivisionError("token=canary-secret")
        yield

    def works():
        yield Finding("last", State.OK, "fine")

    late = ("hangs", hangs, 0.2, "restart it")
    first, hung, broken, last = run_checks([late, ("breaks", breaks, 60, ""), ("works", works, 60, "")])
    assert (first.check, last.check) == ("first", "last")
    assert (hung.state, hung.found, hung.to_do) == (State.FAULT, "no answer within 0 s", "restart it")
    assert broken.found.startswith("ZeroDivisionError")
    assert "canary" not in broken.found


def test_a_healthy_machine_and_place_have_no_fault(guarded_server, guarded_bucket, tmp_path, clean_environment):
    url, options = f"s3://{guarded_bucket}/set", {"endpoint_url": guarded_server.http}
    write_set(url, 30, storage_options=options)
    found = diagnose(url, storage_options=options, local=tmp_path / "cache", write=True)
    assert faults(found.findings) == []
    assert found.ok
    states = {each.check: each.state for each in found.findings}
    for check in ("packages", "java", "cache locks", "credentials", "data set", "list", "write", "conditional put"):
        assert states[check] is State.OK, check
    assert json.loads(json.dumps(found.to_dict()))["counts"]["fault"] == 0
    assert guarded_server.secret not in str(found)
    assert [path.name for path in tmp_path.iterdir()] == ["home"] or list(tmp_path.iterdir()) == []
    client = guarded_server.admin("s3")
    with guarded_server.unguarded():
        listed = [item["Key"] for item in client.list_objects_v2(Bucket=guarded_bucket)["Contents"]]
    assert [key for key in listed if "probe" in key] == []
