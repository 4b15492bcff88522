"""moto as a process: S3 over http and https on one state, every request's signature and IAM policy checked.

python s3_server.py HTTP_PORT HTTPS_PORT CHAIN KEY
"""

import json
import os
import sys
import threading
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.storage.servers.certificates import Certificate
from tests.storage.servers.process import free_port, run_server

REGION = "us-east-1"
PAGE = 100
"""Keys in one page of a listing: fewer than S3's thousand, so that listings of few objects have pages."""


@dataclass(frozen=True)
class GuardedS3:
    """Two addresses of one set of buckets, and the keys of a user with rights on buckets `free-*` only."""

    http: str
    https: str
    key: str
    secret: str
    authority: Path

    def admin(self, service):
        """Return a client of the account's owner, for use inside `unguarded`."""
        import boto3

        return boto3.client(
            service, endpoint_url=self.http, region_name=REGION, aws_access_key_id="o", aws_secret_access_key="o"
        )

    @contextmanager
    def unguarded(self):
        """Turn the checks off inside, to make buckets and users."""
        self._checks_after("inf")
        try:
            yield self
        finally:
            self._checks_after("0")

    def _checks_after(self, requests):
        ask = urllib.request.Request(
            f"{self.http}/moto-api/reset-auth",
            data=requests.encode(),
            method="POST",
            headers={"Content-Type": "text/plain"},
        )
        urllib.request.urlopen(ask, timeout=30).read()


# The least rights for reading and writing shard sets, as docs/storage.md lists them.
LEAST_RIGHTS = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            "Resource": "arn:aws:s3:::BUCKET/*",
        },
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::BUCKET"},
    ],
}


def policy_for(bucket: str, rights=None) -> str:
    """Return the policy as JSON for IAM."""
    return json.dumps(rights or LEAST_RIGHTS).replace("BUCKET", bucket)


@contextmanager
def guarded_s3(certificate: Certificate):
    """Run the server, with its user."""
    with ExitStack() as stack:
        secure = free_port()
        argv = [sys.executable, "-m", "tests.storage.servers.s3_server"]
        files = [str(certificate.chain), str(certificate.key)]
        port = stack.enter_context(run_server(lambda port: [*argv, str(port), str(secure), *files]))
        server = GuardedS3(f"http://127.0.0.1:{port}", f"https://127.0.0.1:{secure}", "", "", certificate.authority)
        with server.unguarded():
            iam = server.admin("iam")
            iam.create_user(UserName="trainer")
            made = iam.create_access_key(UserName="trainer")["AccessKey"]
            iam.put_user_policy(UserName="trainer", PolicyName="p", PolicyDocument=policy_for("free-*"))
        yield GuardedS3(server.http, server.https, made["AccessKeyId"], made["SecretAccessKey"], certificate.authority)


def main(port, secure, chain, key):
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(PAGE)
    app = DomainDispatcherApplication(create_backend_app)
    tls = make_server("127.0.0.1", int(secure), app, threaded=True, ssl_context=(chain, key))
    threading.Thread(target=tls.serve_forever, daemon=True).start()
    make_server("127.0.0.1", int(port), app, threaded=True).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
