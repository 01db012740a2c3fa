"""An agent in Python without a framework: a model and a loop that runs its tool calls with jig.

Usage: agent.py ADDRESS [TASK]

Without OPENAI_API_KEY, a script replaces the model. With it, the loop asks OPENAI_MODEL at
OPENAI_BASE_URL: any server with Chat Completions.
Needs grpcio, and stubs in PYTHONPATH: see "A model's first call in Python" in README.md.
"""

import json
import os
import sys
import time
import urllib.request
import uuid

import grpc
from jig.v1 import catalog_service_pb2, catalog_service_pb2_grpc
from jig.v1 import invoke_service_pb2, invoke_service_pb2_grpc

MAX_ROUNDS = 20
MAX_ATTEMPTS = 5
CALL_TIMEOUT_SEC = 90
RETRY_DELAY_SEC = 0.5
TASK = "Write a script that prints a greeting, and run it."


class Tools:
    """The tools of a daemon, in the format of Chat Completions, for one conversation."""

    def __init__(self, channel):
        self.catalog = catalog_service_pb2_grpc.CatalogServiceStub(channel)
        self.invoke = invoke_service_pb2_grpc.InvokeServiceStub(channel)
        self.metadata = [("jig-session", f"agent-{uuid.uuid4().hex[:8]}")]
        if key := os.environ.get("JIG_KEY"):
            self.metadata.append(("x-api-key", key))

    def definitions(self):
        """Returns the value of `tools` for the model."""
        request = catalog_service_pb2.ListToolsRequest(format="TOOL_FORMAT_OPENAI_CHAT")
        response = self.catalog.ListTools(request, metadata=self.metadata, timeout=CALL_TIMEOUT_SEC)
        return json.loads(response.tools_json)

    def run(self, tool_calls):
        """Runs the tool calls of one reply. Returns the messages for the model."""
        calls = [
            invoke_service_pb2.BatchCall(
                call_id=call["id"],
                name=call["function"]["name"],
                arguments_json=call["function"]["arguments"],
            )
            for call in tool_calls
        ]
        request = invoke_service_pb2.InvokeBatchRequest(calls=calls)
        # A retry with the same id never runs a tool twice.
        metadata = [*self.metadata, ("jig-request-id", uuid.uuid4().hex)]
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                response = self.invoke.InvokeBatch(
                    request, metadata=metadata, timeout=CALL_TIMEOUT_SEC
                )
                return json.loads(response.messages_json)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or attempt == MAX_ATTEMPTS:
                    raise
                time.sleep(RETRY_DELAY_SEC * attempt)


def ask_model(messages, tools):
    """Sends the conversation to a model. Returns its reply."""
    base = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": tools}
    headers = {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(f"{base}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["choices"][0]["message"]


def ask_script(messages, _tools):
    """Replies as a model would: writes a file, runs it, and reports its output."""
    step = sum(message["role"] == "assistant" for message in messages)
    script = [
        ("write_file", {"path": "greet.sh", "content": "echo hello from the sandbox\n"}),
        ("run", {"command": "sh greet.sh", "timeout_sec": 10}),
    ]
    if step == len(script):
        return {"role": "assistant", "content": f"Done: {messages[-1]['content']}"}
    name, arguments = script[step]
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{step}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: agent.py ADDRESS [TASK], for example: agent.py 127.0.0.1:50051")
    address, task = sys.argv[1], " ".join(sys.argv[2:]) or TASK
    ask = ask_model if "OPENAI_API_KEY" in os.environ else ask_script
    messages = [{"role": "user", "content": task}]
    with grpc.insecure_channel(address) as channel:
        tools = Tools(channel)
        definitions = tools.definitions()
        for _ in range(MAX_ROUNDS):
            reply = ask(messages, definitions)
            messages.append(reply)
            if not reply.get("tool_calls"):
                print(reply["content"])
                return
            for call in reply["tool_calls"]:
                print(f"{call['function']['name']} {call['function']['arguments']}")
            messages += tools.run(reply["tool_calls"])
    sys.exit(f"the model has not finished after {MAX_ROUNDS} rounds")


main()
