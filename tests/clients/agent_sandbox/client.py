"""The Python SDK of agent-sandbox, unchanged: runs commands and moves files.

Only Kubernetes is missing: the stand-in says that the pod of the sandbox has the loopback address.
"""

import io
import sys

from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.models import SandboxdInClusterConnectionConfig
from k8s_agent_sandbox.sandbox import Sandbox

GRPC, REST = (int(address.rsplit(":", 1)[1]) for address in sys.argv[1:3])


class StandIn:
    """Stands in for the API of Kubernetes."""

    injected_api_client = None

    def get_sandbox(self, name, namespace):
        return {"metadata": {}, "status": {"podIPs": ["127.0.0.1"]}}


config = SandboxdInClusterConnectionConfig(
    mode="in-cluster-pod-ip", grpc_port=GRPC, rest_port=REST
)
sandbox = Sandbox("claim", "sandbox", connection_config=config, k8s_helper=StandIn())
passed = failed = 0


def check(name, actual, expected):
    global passed, failed
    if actual == expected:
        passed += 1
    else:
        failed += 1
        print(f"FAIL {name}: {actual!r}, not {expected!r}")


def status_of(call):
    try:
        call()
    except SandboxRequestError as error:
        return error.status_code
    return None


content = bytes(range(256)) * 10_000
sandbox.files.write("python/data.bin", content)
check("read", sandbox.files.read("python/data.bin"), content)
output = io.BytesIO()
check("read_to", sandbox.files.read_to("python/data.bin", output), len(content))
check("read_to has the bytes", output.getvalue(), content)
sandbox.files.write("python/stream.bin", io.BytesIO(content))
check("a stream is written", sandbox.files.read("python/stream.bin"), content)
entries = sandbox.files.list("python")
found = [(entry.name, entry.size, entry.type, entry.mode) for entry in entries]
check(
    "list",
    found,
    [(name, len(content), "file", "0644") for name in ("data.bin", "stream.bin")],
)
check("list of the workspace", "python" in [entry.name for entry in sandbox.files.list("/")], True)
check("exists", sandbox.files.exists("/python/data.bin"), True)
check("a missing file", sandbox.files.exists("python/none"), False)
check("read of a missing file", status_of(lambda: sandbox.files.read("python/none")), 404)
unsafe = lambda: sandbox.files.read("../../etc/passwd", allow_unsafe_paths=True)
check("a path out of the workspace", status_of(unsafe), 403)

result = sandbox.commands.run("wc -c <data.bin; echo $WORD >&2; exit 3", env={"WORD": "hello"}, cwd="python")
check("run", (result.stdout, result.stderr, result.exit_code), ("2560000\n", "hello\n", 3))
result = sandbox.commands.run("sleep 300", command_timeout=1)
check("a timeout", (result.exit_code, result.timed_out), (124, True))

check("delete of a full directory", status_of(lambda: sandbox.files.delete("python")), 409)
sandbox.files.delete("python", recursive=True)
check("delete", sandbox.files.exists("python"), False)
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
