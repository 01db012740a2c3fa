"""An agent: a model, and a loop that runs its tool calls in sandboxes.

Usage: agent.py [DIRECTORY]

Starts a daemon for the directory, or calls the one of JIG_ADDRESS. A script replaces the model. Of
a real one, `ask_model` would return `anthropic.Anthropic().messages.create(model=…, max_tokens=…,
tools=tools, messages=messages)`. The loop also accepts the replies of the other vendors.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import jig

MAX_ROUNDS = 20
SCRIPT = [
    ("write_file", {"path": "greet.sh", "content": "echo hello from the sandbox\n"}),
    ("run", {"command": "sh greet.sh", "timeout_sec": 10}),
]


def ask_model(tools: list[dict[str, Any]], messages: list[Any]) -> dict[str, Any]:
    """Replies as a model would: writes a file, runs it, and reports its output."""
    step = sum(message["role"] == "assistant" for message in messages)
    if step == len(SCRIPT):
        text = f"Done: {messages[-1]['content'][0]['content']}"
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}
    name, arguments = SCRIPT[step]
    assert name in [tool["name"] for tool in tools]
    call = {"type": "tool_use", "id": f"call_{step}", "name": name, "input": arguments}
    return {"role": "assistant", "content": [call]}


def run_agent(client: jig.Client, task: str) -> str:
    """Returns the last text of the model."""
    tools = client.tools("anthropic")
    messages: list[Any] = [{"role": "user", "content": task}]
    for _ in range(MAX_ROUNDS):
        reply = ask_model(tools, messages)
        messages.append({"role": "assistant", "content": reply["content"]})
        results = client.handle(reply)
        for outcome in results.outcomes:
            print(f"{outcome.name}: {'ok' if outcome.ok else outcome.error}")
        if not results.messages:
            return str(reply["content"][0]["text"])
        messages += results.messages
    raise SystemExit(f"the model has not finished after {MAX_ROUNDS} rounds")


def connect() -> jig.Client:
    if "JIG_ADDRESS" in os.environ:
        return jig.Client(session="agent")
    return jig.Client.embedded(*sys.argv[1:2], session="agent")


with connect() as connected:
    print(run_agent(connected, "Write a script that prints a greeting, and run it."))
