"""A stand-in for a Databricks workspace: volumes in a folder of this machine, and jobs as real child processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer

FILES, DIRECTORIES, RUNS = "/api/2.0/fs/files", "/api/2.0/fs/directories", "/api/2.2/jobs/runs"


class Workspace(LoopbackServer):
    """Runs submitted jobs, one process each; `secrets` are those of the workspace, by `scope/key`.

    `plan` decides what becomes of the next runs: "", "pending", "internal_error" or "lost".
    """

    def __init__(self, root: Path, secrets=None, token="dapi0123456789abcdef"):
        super().__init__(Handler)
        self.root, self.token, self.secrets = root, token, secrets or {}
        self.volume = str(root / "volume")
        Path(self.volume).mkdir(parents=True)
        self.plan = ""
        self.fail_with: list[int] = []  # statuses for the next requests about jobs
        self.submitted: list[dict] = []
        self.runs: dict[int, dict] = {}
        self.tokens: dict[str, int] = {}
        self.lock = threading.RLock()

    def submit(self, body):
        if body["idempotency_token"] in self.tokens:
            return self.tokens[body["idempotency_token"]]
        number = self.tokens[body["idempotency_token"]] = 100 + len(self.runs)
        self.submitted.append(body)
        run = self.runs[number] = {"process": None, "state": {"life_cycle_state": "PENDING", "state_message": ""}}
        if self.plan == "internal_error":
            run["state"] = {"life_cycle_state": "INTERNAL_ERROR", "result_state": "FAILED", "state_message": "no quota"}
            run["code"] = "CLUSTER_ERROR"
        elif self.plan != "pending":
            run["process"] = self.start(number, body["tasks"][0])
            run["state"] = {"life_cycle_state": "RUNNING"}
        return number

    def start(self, number, task):
        """Install the wheel of a task as a cluster does, and start its entry point."""
        site = self.root / f"cluster-{number}"
        with zipfile.ZipFile(task["libraries"][0]["whl"]) as wheel:
            wheel.extractall(site)
        variables = task.get("new_cluster", {}).get("spark_env_vars", {})
        for name, value in variables.items():
            if value.startswith("{{secrets/"):
                variables = {**variables, name: self.secrets[value[len("{{secrets/") : -2]]}
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
        environment |= {
            **variables, "PYTHONPATH": str(site), "DATABRICKS_RUNTIME_VERSION": "17.3",
            "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        }  # fmt: skip
        wheel_task = task["python_wheel_task"]
        program = Path(__file__).with_name("cluster_process.py")
        if self.plan == "lost":
            program = Path(__file__).with_name("silent_process.py")
        with (self.root / f"output-{number}").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, str(program), wheel_task["entry_point"], *wheel_task["parameters"]],
                env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=site, start_new_session=True,
            )  # fmt: skip

    def look(self, number):
        run = self.runs[number]
        process = run["process"]
        if process is not None and run["state"]["life_cycle_state"] == "RUNNING" and process.poll() is not None:
            result = "SUCCESS" if process.returncode == 0 else "FAILED"
            run["state"] = {"life_cycle_state": "TERMINATED", "result_state": result, "state_message": ""}
        found = {"run_id": number, "state": run["state"], "run_page_url": f"{self.url}/?o=1#job/run/{number}"}
        if "code" in run:
            found["status"] = {"termination_details": {"code": run["code"]}}
        return {**found, "tasks": [{"run_id": number + 1000}]}

    def cancel(self, number):
        run = self.runs[number]
        if run["process"] is not None:
            os.killpg(run["process"].pid, signal.SIGKILL)
            run["process"].wait()
        run["state"] = {"life_cycle_state": "TERMINATED", "result_state": "CANCELED", "state_message": "by the user"}

    def output(self, number):
        return (self.root / f"output-{number}").read_text()

    def close(self):
        for run in self.runs.values():
            if run["process"] is not None and run["process"].poll() is None:
                os.killpg(run["process"].pid, signal.SIGKILL)
                run["process"].wait()
        super().close()


class Handler(LoopbackHandler):
    def handle_one(self):
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path.startswith("/.well-known"):
            return self.fault(404, "NOT_FOUND")
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.fault(401, "UNAUTHENTICATED")
        if path.startswith(RUNS):
            with self.server.lock:
                return self.on_run(path.removeprefix(f"{RUNS}/"), query, body)
        if path.startswith(FILES):
            return self.on_file(Path(path.removeprefix(FILES)), body)
        return self.on_folder(Path(path.removeprefix(DIRECTORIES)))

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one  # noqa: N815 -- http.server names them so

    def on_run(self, call, query, body):
        if self.server.fail_with:
            return self.fault(self.server.fail_with.pop(0), "PLANTED")
        if call == "submit":
            return self.say(run_id=self.server.submit(json.loads(body)))
        if call == "cancel":
            self.server.cancel(json.loads(body)["run_id"])
            return self.say()
        number = int(query["run_id"][0])
        if call == "get-output":
            return self.say(error=self.server.output(number - 1000)[-2000:])
        return self.say(**self.server.look(number))

    def on_file(self, path, body):
        if self.command == "PUT":
            if not path.parent.is_dir():
                return self.fault(404, "NOT_FOUND")
            path.write_bytes(body)
            return self.send(204)
        if not path.is_file():
            return self.fault(404, "NOT_FOUND")
        if self.command == "DELETE":
            path.unlink()
            return self.send(204)
        return self.send(200, path.read_bytes(), {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"})

    def on_folder(self, path):
        if self.command == "PUT":
            path.mkdir(parents=True, exist_ok=True)
            return self.send(204)
        if not path.is_dir():
            return self.fault(404, "NOT_FOUND")
        if self.command == "DELETE":
            shutil.rmtree(path)
            return self.send(204)
        return self.say(contents=[{"path": str(each), "is_directory": each.is_dir()} for each in path.iterdir()])

    def fault(self, status, code):
        message = json.dumps({"error_code": code, "message": f"planted or real: {code}"}).encode()
        self.send(status, message, {"Retry-After": "0"} if status in {429, 503} else {})

    def say(self, **found):
        self.send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})
