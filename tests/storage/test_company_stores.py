"""Stores as companies run them: encryption, roles, proxies, own authorities, identities of machines and workloads."""

import json
import pickle
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

import pytest

from smalti.catalog import verify
from smalti.errors import StoreAuthError, StoreError
from smalti.exchange import copy_version
from smalti.storage import open_store
from tests.shard_sets import write_set
from tests.storage.servers.demanding import DemandingServer, TunnelServer
from tests.storage.servers.gcs_json import GcsJsonServer
from tests.storage.servers.identity_server import STORAGE, IdentityServer
from tests.storage.servers.identity_server import Handler as IdentityHandler
from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer
from tests.storage.servers.s3_server import policy_for

KEY_ID = "arn:aws:kms:eu-central-1:123456789012:key/0a1b2c3d"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole"}]})


def use(store):
    """Publish a set, and read it as another process would; replace, list and remove an object."""
    with tempfile.TemporaryDirectory() as folder:
        copy_version(write_set(Path(folder), 30), store)
    copied = pickle.loads(pickle.dumps(store))
    assert verify(copied).ok
    store.put("large", bytes(1 << 19))
    assert (store.get("large"), copied.size("large")) == (bytes(1 << 19), 1 << 19)
    assert "large" in [info.key for info in store.list()]
    tagged = store.get_tagged("index.json")
    store.put_if_match("index.json", tagged.data, tagged.etag)
    store.delete("large")


def everything_shown(error):
    texts = []
    while error is not None:
        texts.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__
    return " ".join(texts)


# ------------------------------------------------------------------------------------------------------------ S3


def encrypted(method, path, headers, body):
    del body
    writes = method == "PUT" or (method == "POST" and "uploads" in path)
    if not writes or "partNumber=" in path or path.count("/") < 2:
        return None
    expected = {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": KEY_ID,
        "x-amz-server-side-encryption-bucket-key-enabled": "true",
    }
    wrong = [name for name, value in expected.items() if headers.get(name, "").lower() != value.lower()]
    return f"without {wrong[0]}" if wrong else None


def test_every_object_is_encrypted_by_the_key_that_the_bucket_demands(s3_server, s3_bucket):
    with DemandingServer(s3_server, encrypted) as server:
        address, options = f"s3://{s3_bucket}/set", {"endpoint_url": server.url}
        with pytest.raises(StoreAuthError, match="without x-amz-server-side-encryption"):
            open_store(address, options).put("k", b"1")
        refused = len(server.refused)
        use(open_store(address, {**options, "kms_key_id": KEY_ID, "bucket_key": True}))
        assert len(server.refused) == refused


def test_the_default_key_of_the_account_and_aes_are_named_by_the_encryption_alone(s3_server, s3_bucket):
    with DemandingServer(s3_server, lambda *_: None) as server:
        for encryption in ("aws:kms", "AES256"):
            options = {"endpoint_url": server.url, "server_side_encryption": encryption}
            open_store(f"s3://{s3_bucket}/set", options).put("k", b"1")
            assert server.forwarded[-1][2]["x-amz-server-side-encryption"] == encryption


def test_the_reader_pays_with_every_kind_of_request(s3_server, s3_bucket):
    def paid(method, path, headers, body):
        del method, body
        is_bucket = path.split("?")[0].count("/") < 2
        return None if is_bucket or headers.get("x-amz-request-payer") == "requester" else "the requester pays"

    with DemandingServer(s3_server, paid) as server:
        address, options = f"s3://{s3_bucket}/set", {"endpoint_url": server.url}
        with pytest.raises(StoreAuthError, match="the requester pays"):
            open_store(address, options).get("k")
        refused = len(server.refused)
        use(open_store(address, {**options, "requester_pays": True}))
        assert len(server.refused) == refused


@pytest.fixture
def role(guarded_server, guarded_bucket):
    """The role `writer`, which alone has rights on its bucket."""
    del guarded_bucket  # sets the credentials
    name, bucket = f"writer-{secrets.token_hex(4)}", f"roled-{secrets.token_hex(4)}"
    with guarded_server.unguarded():
        iam = guarded_server.admin("iam")
        arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
        iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=policy_for(bucket))
        allow = {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": arn}
        document = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        iam.put_user_policy(UserName="trainer", PolicyName=name, PolicyDocument=document)
        guarded_server.admin("s3").create_bucket(Bucket=bucket)
    return arn, bucket


def test_a_role_opens_a_bucket_that_its_user_may_not_read(guarded_server, role):
    arn, bucket = role
    options = {"endpoint_url": guarded_server.http, "sts_endpoint_url": guarded_server.http}
    with pytest.raises(StoreAuthError):
        open_store(f"s3://{bucket}/set", {"endpoint_url": guarded_server.http}).put("k", b"1")
    use(open_store(f"s3://{bucket}/set", {**options, "role_arn": arn, "role_session_name": "nightly"}))


def test_the_external_id_is_sent_and_never_shown(s3_server, s3_bucket):
    external = "company-4711-secret"

    def demand(method, path, headers, body):
        del method, path, headers
        form = dict(parse_qsl(body.decode(errors="replace")))
        if form.get("Action") == "AssumeRole" and form.get("ExternalId") != external:
            return f"not the external id: {form.get('ExternalId')}"
        return None

    with DemandingServer(s3_server, demand) as server:
        address, arn = f"s3://{s3_bucket}/set", "arn:aws:iam::123456789012:role/any"
        options = {"endpoint_url": s3_server, "sts_endpoint_url": server.url, "role_arn": arn}
        use(open_store(address, {**options, "external_id": external}))
        assert server.forwarded
        wrong = open_store(address, {**options, "external_id": f"no-{external}"})
        for act in (lambda: wrong.get("k"), lambda: wrong.put("k", b"")):
            with pytest.raises(StoreAuthError) as caught:
                act()
            assert f"no-{external}" not in everything_shown(caught.value)


def test_a_web_identity_needs_no_other_credentials_and_its_file_is_read_when_needed(
    s3_server, s3_bucket, clean_environment, tmp_path
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        clean_environment.delenv(name)
    seen = []

    def note(method, path, headers, body):
        del method, path, headers
        form = dict(parse_qsl(body.decode(errors="replace")))
        if form.get("Action") == "AssumeRoleWithWebIdentity":
            seen.append((form["RoleArn"], form["WebIdentityToken"]))

    file = tmp_path / "token"
    with DemandingServer(s3_server, note) as server:
        arn = "arn:aws:iam::123456789012:role/pod"
        options = {"endpoint_url": s3_server, "sts_endpoint_url": server.url, "role_arn": arn}
        store = open_store(f"s3://{s3_bucket}/set", {**options, "web_identity_token_file": str(file)})
        with pytest.raises(StoreAuthError, match="web_identity_token_file"):
            store.get("k")
        file.write_text("first")
        use(store)
        file.write_text("second")
        again = {**options, "web_identity_token_file": str(file), "role_session_name": "again"}
        open_store(f"s3://{s3_bucket}/set", again).size("index.json")
    assert {token for _, token in seen} == {"first", "second"}
    assert {role for role, _ in seen} == {arn}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kms_key_id": KEY_ID, "server_side_encryption": "AES256"}, "`kms_key_id` needs"),
        ({"server_side_encryption": "kms"}, "expected one of AES256, aws:kms"),
        ({"bucket_key": True}, "`bucket_key` needs"),
        ({"kms_key_id": KEY_ID, "s3_additional_kwargs": {"SSEKMSKeyId": "x"}}, "not by both"),
        ({"external_id": "some-external-id"}, "`external_id` need `role_arn`"),
        ({"web_identity_token_file": "f"}, "`web_identity_token_file` need `role_arn`"),
        ({"role_arn": "r", "anon": True}, "exclude each other"),
        ({"role_arn": "r", "web_identity_token_file": "f", "key": "AKIDAKID"}, "leave out `key`"),
        ({"role_arn": "r", "client_kwargs": {"aws_access_key_id": "AKID"}}, "not in `client_kwargs`"),
        ({"proxy": "http://p:1", "config_kwargs": {"proxies": {}}}, "not by both"),
        ({"managed_identity": True}, "is not one of s3://, but of abfs://"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_any_request(options, text):
    with pytest.raises(StoreError) as caught:
        open_store("s3://bucket/set", options)
    assert text in str(caught.value)
    assert "some-external-id" not in str(caught.value)


def test_options_of_a_company_open_a_store_that_does_not_show_its_secrets(clean_environment):
    options = {
        "role_arn": "arn:aws:iam::123456789012:role/training",
        "external_id": "4711-0815",
        "kms_key_id": "alias/training",
        "bucket_key": True,
        "proxy": "http://proxy.example:3128",
        "ca_bundle": "/etc/ssl/company.pem",
    }
    store = open_store("s3://company-data/flowers", options)
    assert store.url == "s3://company-data/flowers"
    assert "4711-0815" not in repr(store)


# ---------------------------------------------------------------------------------------------- the way to a store


def test_the_authority_of_a_company_is_trusted_by_its_option_alone(guarded_server, guarded_bucket, tmp_path):
    address, options = f"s3://{guarded_bucket}/set", {"endpoint_url": guarded_server.https, "request_attempts": 1}
    store = open_store(address, options)
    for act in (lambda: store.get("k"), lambda: store.put("k", b"")):
        with pytest.raises(StoreError, match=r"(?i)certificate"):
            act()
    use(open_store(address, {**options, "ca_bundle": str(guarded_server.authority)}))
    with pytest.raises(StoreError, match="which is not a file here"):
        open_store(address, {**options, "ca_bundle": str(tmp_path / "none.pem")}).get("k")


def test_all_requests_of_s3_and_of_its_roles_go_through_the_proxy(guarded_server, role):
    arn, bucket = role
    with TunnelServer("clerk:open-sesame") as proxy:
        way = {"proxy": proxy.url.replace("http://", "http://clerk:open-sesame@")}
        options = {"endpoint_url": guarded_server.https, "ca_bundle": str(guarded_server.authority), **way}
        use(open_store(f"s3://{bucket}/set", {**options, "role_arn": arn, "sts_endpoint_url": guarded_server.https}))
        assert set(proxy.targets) == {guarded_server.https.removeprefix("https://")}
        assert len(proxy.targets) >= 4, "STS and S3, each for reading and for writing"
        wrong = way["proxy"].replace("sesame", "simsim")
        store = open_store(f"s3://{bucket}/set", {**options, "proxy": wrong, "request_attempts": 1})
        for act in (lambda: store.get("k"), lambda: store.put("k", b"")):
            with pytest.raises(StoreError) as caught:
                act()
            assert "open-simsim" not in everything_shown(caught.value)
        assert proxy.refused
    assert "open-sesame" not in repr(store)


# --------------------------------------------------------------------------------------------------------- Azure


class MetadataHandler(IdentityHandler):
    """The metadata service of Azure's virtual machines."""

    def get(self):
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        is_known = (
            parts.path == "/metadata/identity/oauth2/token"
            and self.headers.get("Metadata") == "true"
            and query.get("resource") == [STORAGE]
            and query.get("client_id", ["mine"]) == ["mine"]
        )
        self.answer(is_known, self.path)

    do_GET = get  # noqa: N815


@pytest.fixture
def machine(clean_environment):
    """A virtual machine of Azure with a managed identity."""
    with IdentityServer("unused") as server:
        server.RequestHandlerClass = MetadataHandler
        clean_environment.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url)
        yield server


def test_a_managed_identity_alone_is_asked_and_may_be_chosen_by_its_id(
    azurite_https, secure_container, machine, clean_environment
):
    clean_environment.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90IHRoZSBrZXk=")  # not looked at
    options = {"account_name": azurite_https.account, "account_host": azurite_https.host, "managed_identity": True}
    use(open_store(f"az://{secure_container}/set", {**options, "managed_identity_client_id": "mine"}))
    assert machine.requests
    with pytest.raises(StoreAuthError, match="Azure identity gave no token"):
        open_store(f"az://{secure_container}/set", {**options, "managed_identity_client_id": "other"}).get("k")
    with pytest.raises(StoreError, match="leave out `account_key`"):
        open_store(f"az://{secure_container}/set", {**options, "account_key": "k"})


def test_azure_goes_through_the_proxy_and_trusts_the_authority(azurite_https, container_of, certificate):
    with TunnelServer() as proxy:
        options = {
            "account_name": azurite_https.account,
            "account_host": azurite_https.host,
            "account_key": azurite_https.key,
            "request_attempts": 1,
        }
        way = {"proxy": proxy.url, "ca_bundle": str(certificate.authority)}
        with pytest.raises(StoreError, match=r"(?i)certificate"):
            open_store(f"az://{container_of}/set", options).get("k")
        use(open_store(f"az://{container_of}/set", options | way))
        assert set(proxy.targets) == {azurite_https.host.split("/")[0]}


@pytest.fixture
def container_of(azurite_https, certificate, clean_environment):
    """A container of the https server, whose certificate is not trusted by default."""
    import ssl

    import aiohttp.connector

    clean_environment.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", ssl.create_default_context())
    return azurite_https.make_container(certificate.authority)


# -------------------------------------------------------------------------------------------------------- Google


class TokenHandler(LoopbackHandler):
    """The metadata service of Google's machines and clusters, and its security token service."""

    def get(self):
        self.server.requests.append(self.path)
        path = urlsplit(self.path).path
        if path == "/":
            return self.send(200, b"", {"Metadata-Flavor": "Google"})
        if self.headers.get("Metadata-Flavor") != "Google":
            return self.send(403, b"Metadata-Flavor is missing")
        if path.endswith("/token"):
            answer = {"access_token": self.server.token, "expires_in": 3600, "token_type": "Bearer"}
        elif path.endswith("/project-id"):
            return self.send(200, b"project", {"Metadata-Flavor": "Google", "Content-Type": "application/text"})
        else:
            answer = {"email": "trainer@project", "scopes": ["any"], "aliases": ["default"]}
        headers = {"Metadata-Flavor": "Google", "Content-Type": "application/json"}
        return self.send(200, json.dumps(answer).encode(), headers)

    def post(self):
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        self.server.requests.append(unquote(form.get("subject_token", "")))
        if form.get("subject_token") != "pod-token":
            return self.send(400, b'{"error": "invalid_grant", "error_description": "not the pod"}')
        answer = {
            "access_token": self.server.token,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": 3600,
        }
        return self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    do_GET, do_POST = get, post  # noqa: N815


class TokenService(LoopbackServer):
    def __init__(self, certificate=None):
        super().__init__(TokenHandler, certificate)
        self.token = f"ya29-{secrets.token_hex(8)}"
        self.requests: list[str] = []


def pool_file(folder, url):
    """The file that `gcloud iam workload-identity-pools create-cred-config` writes."""
    (folder / "subject").write_text("pod-token")
    content = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{url}/v1/token",
        "credential_source": {"file": str(folder / "subject")},
    }
    (folder / "pool.json").write_text(json.dumps(content))
    return str(folder / "pool.json")


def test_a_workload_identity_pool_gives_the_tokens_of_google(tmp_path, clean_environment):
    with TokenService() as tokens, GcsJsonServer(token=tokens.token) as server:
        options = {"endpoint_url": server.url, "workload_identity": pool_file(tmp_path, tokens.url)}
        use(open_store("gs://bucket/set", options))
        assert tokens.requests
        (tmp_path / "subject").write_text("another")
        with pytest.raises(StoreError) as caught:
            open_store("gs://bucket/set", {**options, "request_attempts": 1}).get("k")
        assert "not the pod" in everything_shown(caught.value)
        with pytest.raises(StoreError, match="leave out `token`"):
            open_store("gs://bucket/set", {**options, "token": "anon"})
        (tmp_path / "other.json").write_text('{"type": "service_account"}')
        with pytest.raises(StoreAuthError, match="holds 'service_account' and not 'external_account'"):
            open_store("gs://bucket/set", {**options, "workload_identity": str(tmp_path / "other.json")}).get("k")


def test_the_tokens_of_google_come_through_the_proxy_from_a_service_with_the_own_authority(
    tmp_path, certificate, clean_environment
):
    with TokenService(certificate) as tokens, GcsJsonServer(token=tokens.token) as server, TunnelServer() as proxy:
        options = {"endpoint_url": server.url, "workload_identity": pool_file(tmp_path, tokens.url)}
        front = DemandingServer(server.url, lambda *_: None, certificate)
        with front:
            way = {"proxy": proxy.url, "ca_bundle": str(certificate.authority), "endpoint_url": front.url}
            use(open_store("gs://bucket/set", {**options, **way}))
        assert set(proxy.targets) == {url.removeprefix("https://") for url in (tokens.url, front.url)}


METADATA_PROGRAM = """
import sys
from smalti.storage import open_store

store = open_store("gs://bucket/set", {"endpoint_url": sys.argv[1]})
store.put("k", b"value")
assert store.get("k") == b"value"
"""


def test_a_workload_of_google_kubernetes_logs_in_by_the_metadata_server(clean_environment):
    with TokenService() as tokens, GcsJsonServer(token=tokens.token) as server:
        clean_environment.delenv("NO_GCE_CHECK", raising=False)
        host = tokens.url.removeprefix("http://")
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
            clean_environment.setenv(name, host)
        command = [sys.executable, "-c", METADATA_PROGRAM, server.url]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, (done.stderr, time.monotonic() - began)
        assert any("service-accounts/default/token" in path for path in tokens.requests)
