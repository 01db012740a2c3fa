"""Checks the rendered tools with the types and functions of the vendors' Python packages."""

import copy
import json
import pathlib
import sys

import anthropic
import mcp.types
import openai.types.chat
import openai.types.responses
import pydantic
from google.genai import types as gemini
from openai.lib import _pydantic as openai_strict

directory = pathlib.Path(sys.argv[1])
problems = []
tried = 0


def rendered(form):
    for path in sorted(directory.glob(f"*.{form}.json")):
        yield path.name.split(".")[0], json.loads(path.read_text())


def attempt(dialect, tool, what, action):
    global tried
    tried += 1
    try:
        problem = action()
    except Exception as error:
        problem = error
    if problem is not None:
        problems.append(f"{dialect} {tool}: {what}: {problem}")


def typed(adapter, value):
    """Checks that the type parses the value without adding, changing or dropping anything."""
    parsed = adapter.dump_python(adapter.validate_python(value), mode="json", by_alias=True, exclude_unset=True)
    return None if parsed == value else f"is parsed as {parsed}"


def unchanged(function, schema):
    """Checks that the vendor's function that transforms schemas changes nothing."""
    transformed = function(copy.deepcopy(schema))
    return None if transformed == schema else f"{schema} becomes {transformed}"


def strict_openai(schema):
    return openai_strict._ensure_strict_json_schema(schema, path=(), root=schema)


def strict(schema):
    """The schema in the form of a strict Anthropic tool: objects are closed, enums have no type, and nothing has a default."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: strict(value) for name, value in schema.items()}
    if schema.get("type") == "object":
        schema["additionalProperties"] = False
        schema.setdefault("properties", {})
    if isinstance(schema.get("description"), str):
        schema.pop("default", None)
    if isinstance(schema.get("enum"), list):
        schema.pop("type", None)
    return schema


chat = pydantic.TypeAdapter(openai.types.chat.ChatCompletionFunctionToolParam)
for dialect, tools in rendered("openai-chat"):
    for tool in tools:
        attempt(dialect, tool["function"]["name"], "openai chat", lambda: typed(chat, tool))

responses = pydantic.TypeAdapter(openai.types.responses.FunctionToolParam)
for dialect, tools in rendered("openai-responses"):
    for tool in tools:
        attempt(dialect, tool["name"], "openai responses", lambda: typed(responses, tool))
        if tool["strict"]:
            attempt(dialect, tool["name"], "openai strict", lambda: unchanged(strict_openai, tool["parameters"]))

messages = pydantic.TypeAdapter(anthropic.types.ToolParam)
for dialect, tools in rendered("anthropic"):
    for tool in tools:
        attempt(dialect, tool["name"], "anthropic", lambda: typed(messages, tool))
        attempt(dialect, tool["name"], "anthropic strict", lambda: unchanged(anthropic.transform_schema, strict(tool["input_schema"])))

for dialect, tools in rendered("gemini"):
    for tool in tools:
        attempt(dialect, "", "gemini", lambda: gemini.Tool.model_validate(tool) and None)

for dialect, tools in rendered("mcp"):
    attempt(dialect, "", "mcp", lambda: typed(pydantic.TypeAdapter(list[mcp.types.Tool]), tools))

RESULTS = {
    "openai-chat": openai.types.chat.ChatCompletionToolMessageParam,
    "openai-responses": openai.types.responses.response_input_item_param.FunctionCallOutput,
    "anthropic": anthropic.types.ToolResultBlockParam,
    "gemini": gemini.Part,
    "mcp": mcp.types.CallToolResult,
}
for form, kind in RESULTS.items():
    results = json.loads((directory / "results" / f"{form}.json").read_text())
    attempt("results", form, "number", lambda: None if len(results) == 3 else f"{len(results)} of 3")
    for result in results:
        attempt("results", form, "result", lambda: typed(pydantic.TypeAdapter(kind), result))

print("\n".join(problems))
print(f"{tried} tried, {len(problems)} wrong")
sys.exit(not tried or bool(problems))
