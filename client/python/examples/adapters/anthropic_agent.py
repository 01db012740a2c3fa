"""An agent with the tool runner of the package `anthropic`. A script replaces the model.

Usage: JIG_ADDRESS=127.0.0.1:50051 anthropic_agent.py
"""

import asyncio
import json
from typing import Any

import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from anthropic.types.beta import BetaToolUseBlock

import jig
from jig.adapters.anthropic import BashTool, TextEditorTool

FILE = {"command": "create", "path": "greet.sh", "file_text": "echo hello from the sandbox\n"}
SCRIPT: list[dict[str, Any]] = [
    {"type": "tool_use", "id": "1", "name": "str_replace_based_edit_tool", "input": FILE},
    {"type": "tool_use", "id": "2", "name": "bash", "input": {"command": "sh greet.sh"}},
    {"type": "text", "text": "Done."},
]


def ask_model(request: httpx2.Request) -> httpx2.Response:
    """Replies as the API would."""
    result = json.loads(request.content)["messages"][-1]["content"]
    block = SCRIPT.pop(0)
    if block["type"] == "text":
        print("bash:", result[0]["content"].strip())
    reply = {
        "id": f"msg_{len(SCRIPT)}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [block],
        "stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    return httpx2.Response(200, json=reply)


async def main() -> None:
    http_client = DefaultAsyncHttpxClient(transport=httpx2.MockTransport(ask_model))
    async with (
        jig.AsyncClient() as client,
        AsyncAnthropic(api_key="none", http_client=http_client) as anthropic,
    ):
        workspace = await client.create_workspace()
        inside = client.with_options(workspace=workspace.name)
        runner = anthropic.beta.messages.tool_runner(
            model="scripted",
            max_tokens=1000,
            tools=[BashTool(inside), TextEditorTool(inside)],
            messages=[{"role": "user", "content": "Greet me."}],
        )
        async for message in runner:
            block = message.content[0]
            if not isinstance(block, BetaToolUseBlock):
                print(block.text if block.type == "text" else block.type)
        await client.delete_workspace(workspace.name)


asyncio.run(main())
