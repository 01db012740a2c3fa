"""An agent of Pydantic AI that works in a workspace of jig. A script replaces the model.

Usage: JIG_ADDRESS=127.0.0.1:50051 pydantic_ai_agent.py
"""

import asyncio

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import jig
from jig.adapters.pydantic_ai import JigWorkspaceBackend

SCRIPT = "echo hello from the sandbox"


def ask_model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Replies as a model would: calls the tool, and reports its output."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"The script printed: {last.content}")])
    return ModelResponse(parts=[ToolCallPart("run_script", {"script": SCRIPT})])


agent = Agent(FunctionModel(ask_model))


@agent.tool
async def run_script(context: RunContext[object], script: str) -> str:
    """Writes a script and runs it."""
    await context.workspace.write_text("script.sh", script)
    result = await context.workspace.run(["sh", "script.sh"], timeout=10)
    return result.stdout.strip()


async def main() -> None:
    async with jig.AsyncClient() as client:
        backend = JigWorkspaceBackend(client)
        result = await agent.run("Greet me.", workspace=backend)
        print(result.output)
        assert backend.ref is not None
        await client.delete_workspace(backend.ref.id)


asyncio.run(main())
