"""A deep agent of LangChain that works in a workspace of jig. A script replaces the model.

Usage: JIG_ADDRESS=127.0.0.1:50051 deep_agent.py
"""

from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolCall

import jig
from jig.adapters.deepagents import JigSandbox


class ScriptedModel(GenericFakeChatModel):
    """A model that replies as its script says."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[ToolCall(name=name, args=arguments, id=f"call_{name}")])


with jig.Client() as client:
    sandbox = JigSandbox.create(client)
    path = f"{sandbox.directory}/greet.sh"
    script = [
        call("write_file", file_path=path, content="echo hello from the sandbox\n"),
        call("execute", command=f"sh {path}"),
        AIMessage("Done."),
    ]
    agent = create_deep_agent(model=ScriptedModel(messages=iter(script)), backend=sandbox)
    result = agent.invoke({"messages": [HumanMessage("Greet me.")]})
    for message in result["messages"]:
        if message.type == "tool":
            print(f"{message.name}: {message.text.splitlines()[0]}")
    sandbox.close()
