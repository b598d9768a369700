"""kubectl reads the manifests as we have written them.

With `--dry-run=client` kubectl asks the server for its kinds only, which a small server here answers. Schemas are
checked elsewhere: for that kubectl needs a cluster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

KINDS = {
    "kubeflow.org/v1": ["PyTorchJob"],
    "kubeflow.org/v2beta1": ["MPIJob"],
    "trainer.kubeflow.org/v1alpha1": ["TrainJob", "TrainingRuntime"],
}


def _resources(version: str) -> dict[str, object]:
    found = [
        {
            "name": f"{kind.lower()}s",
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": ["create"],
        }
        for kind in KINDS[version]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


def _groups() -> dict[str, object]:
    groups: dict[str, list[dict[str, str]]] = {}
    for text in KINDS:
        group, _, version = text.partition("/")
        groups.setdefault(group, []).append({"groupVersion": text, "version": version})
    found = [{"name": name, "versions": each, "preferredVersion": each[0]} for name, each in groups.items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


ANSWERS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": _groups(),
    **{f"/apis/{version}": _resources(version) for version in KINDS},
}


class Discovery(BaseHTTPRequestHandler):
    """Answers which kinds exist, as an API server does."""

    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path.partition("?")[0])
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer or {"kind": "Status", "apiVersion": "v1", "status": "Failure"}).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Discovery)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.job
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl (Debian: kubernetes-client) is not installed")
def test_kubectl_reads_what_we_wrote(server: str, text: Callable[..., str], tmp_path: Path) -> None:
    command = ["kubectl", "--server", server, "--cache-dir", str(tmp_path), "create", "--dry-run=client"]
    rendered = [text(kind, "--name", "digits", "--env", "SWITCH=on") for kind in ("pytorchjob", "mpijob", "trainjob")]
    done = subprocess.run(
        [*command, "--validate=false", "-o", "json", "-f", "-"],
        input="---\n".join(rendered),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads("[" + done.stdout.replace("}\n{", "},{") + "]")
    assert read == [document for one in rendered for document in yaml.safe_load_all(one)]
    # Both read YAML 1.1, where `on` is true unless it is quoted.
    assert done.stdout.count('"value": "on"') == len(rendered), done.stdout
