"""A code agent of smolagents whose Python runs in a sandbox of jig. A script replaces the model.

Usage: JIG_ADDRESS=127.0.0.1:50051 smolagents_agent.py
"""

from typing import Any

from smolagents import CodeAgent, LogLevel
from smolagents.models import ChatMessage, MessageRole, Model

import jig
from jig.adapters.smolagents import JigExecutor

SCRIPT = [
    "<code>\nnumbers = [1, 2, 3]\nprint(numbers)\n</code>",
    "<code>\nfinal_answer(f'The sum is {sum(numbers)}.')\n</code>",
]


class ScriptedModel(Model):
    """A model that replies as its script says."""

    def generate(self, *_: Any, **__: Any) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=SCRIPT.pop(0))


with jig.Client() as client:
    workspace = client.create_workspace()
    executor = JigExecutor(client.with_options(workspace=workspace.name))
    agent = CodeAgent(
        tools=[], model=ScriptedModel(), executor=executor, verbosity_level=LogLevel.OFF
    )
    print(agent.run("Add the numbers."))
    executor.cleanup()
    client.delete_workspace(workspace.name)
