"""An agent of the OpenAI Agents SDK with tools of jig. A script replaces the model.

Usage: JIG_ADDRESS=127.0.0.1:50051 openai_agent.py
"""

import asyncio

from agents import (
    Agent,
    ApplyPatchTool,
    Runner,
    ShellTool,
    set_tracing_disabled,
)
from agents.items import TResponseOutputItem
from agents.testing import ScriptedModel, assistant_message
from openai.types.responses import ResponseApplyPatchToolCall, ResponseFunctionShellToolCall
from openai.types.responses.response_apply_patch_tool_call import OperationCreateFile
from openai.types.responses.response_function_shell_tool_call import Action

import jig
from jig.adapters.openai_agents import PatchEditor, ShellExecutor

SCRIPT: list[TResponseOutputItem] = [
    ResponseApplyPatchToolCall(
        id="1",
        call_id="1",
        type="apply_patch_call",
        status="completed",
        operation=OperationCreateFile(
            type="create_file", path="greet.sh", diff="+echo hello from the sandbox"
        ),
    ),
    ResponseFunctionShellToolCall(
        id="2",
        call_id="2",
        type="shell_call",
        status="completed",
        action=Action(commands=["sh greet.sh"], timeout_ms=10_000),
    ),
]


async def main() -> None:
    async with jig.AsyncClient() as client:
        workspace = await client.create_workspace()
        inside = client.with_options(workspace=workspace.name)
        agent = Agent(
            name="Greeter",
            model=ScriptedModel([*([call] for call in SCRIPT), [assistant_message("Done.")]]),
            tools=[ShellTool(ShellExecutor(inside)), ApplyPatchTool(PatchEditor(inside))],
        )
        result = await Runner.run(agent, "Greet me.")
        outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
        print(outputs[-1])
        await client.delete_workspace(workspace.name)


set_tracing_disabled(True)
asyncio.run(main())
