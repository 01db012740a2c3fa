"""Tool calls that need approval, with a client that awaits.

Usage: approvals.py DIRECTORY

Starts a daemon for the directory that asks about each command. A script replaces the model. Its
calls have the form of OpenAI's Responses, and run concurrently. The program approves tests only.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import jig
from jig.v1.messages import Approval, Decision

POLICY = """
[[policy.rules]]
name = "commands"
tool = "run"
action = "ask"
"""
COMMANDS = ["echo 3 passed", "rm -rf tests"]


async def approve(approval: Approval) -> Decision:
    """Decides about a call. A real program would ask a person."""
    command = approval.parameters[0].value
    decision: Decision = "ALLOW" if command.startswith("echo") else "DENY"
    print(f"{decision}: {command}")
    return decision


async def run_calls(address: str) -> None:
    output = [
        {
            "type": "function_call",
            "call_id": f"call_{number}",
            "name": "run",
            "arguments": json.dumps({"command": command}),
        }
        for number, command in enumerate(COMMANDS)
    ]
    async with jig.AsyncClient(address) as client:
        results = await client.handle({"output": output}, approve=approve, wait_sec=60)
    for message in results.messages:
        print(message["output"])


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "jigd.toml"
        config.write_text(POLICY)
        with jig.Daemon(sys.argv[1], arguments=[f"--config={config}"]) as daemon:
            asyncio.run(run_calls(daemon.address))


main()
