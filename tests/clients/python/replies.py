"""Parses replies in the types of the vendors' packages with the Python package of jig."""

import anthropic.types
import openai.types.chat
import openai.types.responses
from google.genai import types as gemini
from jig import parse_reply

ARGUMENTS = '{"command": "ls"}'
CALL = {"name": "run", "arguments": ARGUMENTS}

message = anthropic.types.Message.model_validate(
    {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "x",
        "content": [
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "c1", "name": "run", "input": {"command": "ls"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
)


def completion(message):
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "x", "choices": [choice]}
    return openai.types.chat.ChatCompletion.model_validate(reply)


chat = completion({"tool_calls": [{"id": "c1", "type": "function", "function": CALL}]})
response = openai.types.responses.Response.model_validate(
    {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "x",
        "output": [
            {"type": "reasoning", "id": "rs", "summary": []},
            {"type": "function_call", "call_id": "c1", "id": "fc", **CALL},
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
)


def generated(*parts):
    content = {"role": "model", "parts": [{"text": "hi"}, *parts]}
    return gemini.GenerateContentResponse.model_validate({"candidates": [{"content": content}]})


function_call = generated({"functionCall": {"name": "run", "args": {"command": "ls"}}})

REPLIES = [
    ("anthropic", "c1", [message, message.content]),
    ("openai-chat", "c1", [chat, chat.choices[0].message, chat.choices[0].message.tool_calls]),
    ("openai-responses", "c1", [response, response.output]),
    ("gemini", "", [function_call, function_call.function_calls, function_call.candidates[0].content]),
]
for vendor, call_id, replies in REPLIES:
    for reply in replies:
        (call,) = parse_reply(reply)
        found = (call.vendor, call.call_id, call.name, call.arguments_json)
        assert found == (vendor, call_id, "run", ARGUMENTS), found

text = completion({"content": "done"})
for reply in (text, text.choices[0].message, generated(), generated().function_calls):
    assert parse_reply(reply) == [], reply
print(f"{sum(len(replies) for *_, replies in REPLIES)} replies of {len(REPLIES)} vendors")
