"""An agent of Google's ADK that works in a workspace of jig. A script replaces the model.

Usage: JIG_ADDRESS=127.0.0.1:50051 adk_agent.py
"""

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types

import jig
from jig.adapters.google_adk import JigEnvironment

FILE = {"path": "greet.sh", "content": "echo hello from the sandbox\n"}
SCRIPT = [
    types.Part.from_function_call(name="WriteFile", args=FILE),
    types.Part.from_function_call(name="Execute", args={"command": "sh greet.sh"}),
    types.Part(text="Done."),
]


class ScriptedModel(BaseLlm):
    """A model that replies as its script says."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.Content(role="model", parts=[SCRIPT.pop(0)]))


async def main() -> None:
    async with jig.AsyncClient() as client:
        environment = JigEnvironment(client)
        tools = EnvironmentToolset(environment=environment)
        agent = LlmAgent(name="greeter", model=ScriptedModel(model="scripted"), tools=[tools])
        runner = InMemoryRunner(agent, app_name="greeter")
        for event in await runner.run_debug("Greet me.", quiet=True):
            for part in event.content.parts or [] if event.content else []:
                if part.function_response:
                    print(part.function_response.response)
                elif part.text:
                    print(part.text)
        await environment.close()


asyncio.run(main())
