"""A scripted agent without a framework or a model, in each dialect. It uses only the texts that a model receives.

It reads the whole of a truncated output of 300 KiB, waits for a pending call, and repeats a call by its request id.

Usage: agent.py ADDRESS. The last line counts the checks that passed and failed.
"""

import json
import re
import sys
import time
import uuid

import grpc
from jig.v1 import catalog_service_pb2, invoke_service_pb2
from jig.v1 import catalog_service_pb2_grpc, invoke_service_pb2_grpc

SEQUENCE_COMMAND = "seq -f %060g 1 5050"
SEQUENCE = "".join(f"{number:060}\n" for number in range(1, 5051))

# For each dialect: the tool that runs a command, its parameters, the parameters of the tool that reads a file, and the field of the content.
DIALECTS = {
    "": ("run", lambda command: {"command": command}, lambda path: {"path": path}, "content"),
    "agentbench": ("run", lambda command: {"command": command}, lambda path: {"path": path}, "content"),
    "dracode": (
        "run_command",
        lambda command: {"command": "sh", "arguments": f'-c "{command}"'},
        lambda path: {"file_path": path},
        None,
    ),
    "claude": ("Bash", lambda command: {"command": command}, lambda path: {"path": path}, "content"),
    "cli_agent": ("run_in_terminal", lambda command: {"command": command}, lambda path: {"path": path}, "output"),
    "rauskuclaw": ("tool_exec", lambda command: {"command": command}, lambda path: {"path": path}, "content_text"),
    "openai": ("shell", lambda command: {"commands": [command]}, lambda path: {"path": path}, "content"),
    "anthropic": ("bash", lambda command: {"command": command}, lambda path: {"command": "view", "path": path}, None),
}


class Agent:
    """Calls tools of one dialect, as a program with a model does."""

    def __init__(self, channel, dialect):
        self.dialect = dialect
        self.session = (("jig-session", f"agent-{dialect or 'contract'}-{uuid.uuid4().hex[:8]}"),)
        self.invoke_service = invoke_service_pb2_grpc.InvokeServiceStub(channel)
        self.catalog = catalog_service_pb2_grpc.CatalogServiceStub(channel)

    def call(self, name, arguments):
        """Calls one tool. Returns the text for the model."""
        request = invoke_service_pb2.InvokeRequest(dialect=self.dialect, tool=name, params_json=json.dumps(arguments))
        return self.invoke_service.Invoke(request, metadata=self.session, timeout=60).text

    def call_in_batch(self, call_id, name, arguments, wait_ms, request_id=None):
        """Makes a batch of one call. Returns its result, and the text for the model."""
        call = invoke_service_pb2.BatchCall(call_id=call_id, name=name, arguments_json=json.dumps(arguments))
        request = invoke_service_pb2.InvokeBatchRequest(dialect=self.dialect, calls=[call], wait_ms=wait_ms)
        metadata = self.session + ((("jig-request-id", request_id),) if request_id else ())
        response = self.invoke_service.InvokeBatch(request, metadata=metadata, timeout=90)
        (message,) = json.loads(response.messages_json)
        assert message["tool_call_id"] == call_id, message
        return response.results[0], message["content"]

    def listed_names(self, names):
        """Returns those of `names` that the catalog lists for a model."""
        request = catalog_service_pb2.ListToolsRequest(dialect=self.dialect, names=names)
        return list(self.catalog.ListTools(request, timeout=60).names)


def reads_all_output(agent, run, params, read, field):
    text = agent.call(run, params(SEQUENCE_COMMAND))
    if agent.dialect == "agentbench":
        path, reader = json.loads(text)["stdout_path"], "read_file"
    else:
        assert len(text) < 120_000, f"{len(text)} characters"
        path, reader = re.search(r"the whole output is in (\S+): read it with (\w+),", text).groups()
    agent.listed_names([reader])
    text = agent.call(reader, read(path))
    if agent.dialect == "anthropic":
        content = "".join(line.split("\t", 1)[1] for line in text.splitlines(keepends=True))
    else:
        content = json.loads(text)[field] if field else text
    if agent.dialect == "cli_agent":
        content = content.split(":\n", 1)[1]
    assert content.rstrip("\n") == SEQUENCE.rstrip("\n"), f"{len(content)} of {len(SEQUENCE)} characters"


def waits_for_job(agent, run, params, _read, _field):
    result, text = agent.call_in_batch("a", run, params("sleep 2; echo done"), 100)
    assert result.pending, text
    job = re.search(r"continues as job ([\w-]+):", text).group(1)
    assert agent.listed_names(["wait_job"]) == ["wait_job"]
    for attempt in range(20):
        result, text = agent.call_in_batch(f"w{attempt}", "wait_job", {"job_id": job}, 5000)
        answer = json.loads(text)
        if not answer.get("pending"):
            break
    assert answer["ok"], text
    # In agentbench, the result has only the exit code and paths.
    assert answer["output"]["exit_code"] == 0 if agent.dialect == "agentbench" else "done" in text, text


def repeats_call(agent, run, params, _read, _field):
    name = f"repeated_{agent.dialect or 'contract'}_{uuid.uuid4().hex[:8]}"
    request_id = uuid.uuid4().hex
    answers = []
    for attempt in range(3):
        try:
            answers.append(agent.call_in_batch("r", run, params(f"echo x >> {name}; wc -l < {name}"), 30_000, request_id))
        except grpc.RpcError as error:
            # An agent that lost its connection repeats the call with the same id.
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
            time.sleep(0.2)
    assert len(answers) >= 2 and all(answer == answers[0] for answer in answers), answers
    _, lines = agent.call_in_batch("l", run, params(f"wc -l < {name}"), 30_000)
    if agent.dialect == "agentbench":
        lines = agent.call("read_file", {"path": json.loads(lines)["stdout_path"]})
    assert re.search(r"(^|[^0-9])1(\\n|\n)", lines), f"the command ran more than once: {lines}"


def main():
    passed = failed = 0
    with grpc.insecure_channel(sys.argv[1]) as channel:
        for dialect, terms in DIALECTS.items():
            for task in (reads_all_output, waits_for_job, repeats_call):
                try:
                    task(Agent(channel, dialect), *terms)
                    passed += 1
                except Exception as error:  # any exception fails the check
                    failed += 1
                    print(f"{dialect or 'contract'}: {task.__name__}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")


main()
