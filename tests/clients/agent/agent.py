"""An agent without a framework and without a model, in each vocabulary: it goes by the texts that a model gets.

It reads all of an output of 300 KiB that was cut, waits for a call that is pending, and repeats a call by its request id.

Usage: agent.py ADDRESS. The last line says how many checks passed and how many did not.
"""

import json
import re
import sys
import time
import uuid

import grpc
from jig.v1 import catalog_service_pb2, invoke_service_pb2
from jig.v1 import catalog_service_pb2_grpc, invoke_service_pb2_grpc

WRITE = "seq -f %060g 1 5050"
WRITTEN = "".join(f"{number:060}\n" for number in range(1, 5051))

# Vocabulary: the tool that runs a command, its parameters for one, those of the tool that reads a file, and where that has the content.
VOCABULARIES = {
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
    """Calls tools of one vocabulary, as a program does that has the answers of a model."""

    def __init__(self, channel, dialect):
        self.dialect = dialect
        self.session = (("jig-session", f"agent-{dialect or 'contract'}-{uuid.uuid4().hex[:8]}"),)
        self.invoke_service = invoke_service_pb2_grpc.InvokeServiceStub(channel)
        self.catalog = catalog_service_pb2_grpc.CatalogServiceStub(channel)

    def call(self, name, arguments):
        """Calls one tool. Returns the text for the model."""
        request = invoke_service_pb2.InvokeRequest(dialect=self.dialect, tool=name, params_json=json.dumps(arguments))
        return self.invoke_service.Invoke(request, metadata=self.session, timeout=60).text

    def batch(self, call_id, name, arguments, wait_ms, request_id=None):
        """Makes a call as a batch. Returns its result, and the text for the model."""
        call = invoke_service_pb2.BatchCall(call_id=call_id, name=name, arguments_json=json.dumps(arguments))
        request = invoke_service_pb2.InvokeBatchRequest(dialect=self.dialect, calls=[call], wait_ms=wait_ms)
        metadata = self.session + ((("jig-request-id", request_id),) if request_id else ())
        response = self.invoke_service.InvokeBatch(request, metadata=metadata, timeout=90)
        (message,) = json.loads(response.messages_json)
        assert message["tool_call_id"] == call_id, message
        return response.results[0], message["content"]

    def names(self, names):
        """Names of the tools of these names, as the catalog lists them for a model."""
        request = catalog_service_pb2.ListToolsRequest(dialect=self.dialect, names=names)
        return list(self.catalog.ListTools(request, timeout=60).names)


def reads_all(agent, run, params, read, field):
    text = agent.call(run, params(WRITE))
    if agent.dialect == "agentbench":
        path, reader = json.loads(text)["stdout_path"], "read_file"
    else:
        assert len(text) < 120_000, f"{len(text)} characters"
        path, reader = re.search(r"the whole output is in (\S+): read it with (\w+),", text).groups()
    agent.names([reader])
    text = agent.call(reader, read(path))
    if agent.dialect == "anthropic":
        content = "".join(line.split("\t", 1)[1] for line in text.splitlines(keepends=True))
    else:
        content = json.loads(text)[field] if field else text
    if agent.dialect == "cli_agent":
        content = content.split(":\n", 1)[1]
    assert content.rstrip("\n") == WRITTEN.rstrip("\n"), f"{len(content)} of {len(WRITTEN)} characters"


def waits(agent, run, params, _read, _field):
    result, text = agent.batch("a", run, params("sleep 2; echo done"), 100)
    assert result.pending, text
    job = re.search(r"continues as job ([\w-]+):", text).group(1)
    assert agent.names(["wait_job"]) == ["wait_job"]
    for attempt in range(20):
        result, text = agent.batch(f"w{attempt}", "wait_job", {"job_id": job}, 5000)
        answer = json.loads(text)
        if not answer.get("pending"):
            break
    assert answer["ok"], text
    # The document of agentbench has the exit code and paths only.
    assert answer["output"]["exit_code"] == 0 if agent.dialect == "agentbench" else "done" in text, text


def repeats(agent, run, params, _read, _field):
    name = f"repeated_{agent.dialect or 'contract'}_{uuid.uuid4().hex[:8]}"
    request_id = uuid.uuid4().hex
    answers = []
    for attempt in range(3):
        try:
            answers.append(agent.batch("r", run, params(f"echo x >> {name}; wc -l < {name}"), 30_000, request_id))
        except grpc.RpcError as error:
            # As an agent does that was cut off: again, with the same id.
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
            time.sleep(0.2)
    assert len(answers) >= 2 and all(answer == answers[0] for answer in answers), answers
    _, lines = agent.batch("l", run, params(f"wc -l < {name}"), 30_000)
    if agent.dialect == "agentbench":
        lines = agent.call("read_file", {"path": json.loads(lines)["stdout_path"]})
    assert re.search(r"(^|[^0-9])1(\\n|\n)", lines), f"done more than once: {lines}"


def main():
    passed = wrong = 0
    with grpc.insecure_channel(sys.argv[1]) as channel:
        for dialect, vocabulary in VOCABULARIES.items():
            for task in (reads_all, waits, repeats):
                try:
                    task(Agent(channel, dialect), *vocabulary)
                    passed += 1
                except Exception as error:  # whatever it is, it is wrong
                    wrong += 1
                    print(f"{dialect or 'contract'}: {task.__name__}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {wrong} wrong")


main()
