"""Approvals and tasks by the official Python SDK: `approvals.py (URL | PROGRAM ARGUMENT...)`. Calls of dangerous tools need approval.

The SDK has no client of the extension for tasks, but an interface for extensions. This one queries its tasks by the SDK's requests.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from mcp import Client, StdioServerParameters, types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim

passed = failed = 0
TASKS = "io.modelcontextprotocol/tasks"


def check(name: str, condition: bool, value: object = None) -> None:
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print(f"FAILED: {name}: {value!r}")


class TaskResult(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class TaskRequest(types.Request[dict[str, Any], str]):
    method: str
    params: dict[str, Any]
    # The parameter that the header `Mcp-Name` repeats.
    name_param: ClassVar[str | None] = "taskId"


class Tasks(ClientExtension):
    identifier = TASKS

    def __init__(self, action: str = "accept", cancels: bool = False) -> None:
        self.action = action
        self.cancels = cancels
        self.states: list[str] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskResult, resolve=self.follow)]

    async def follow(self, created: TaskResult, context: ClaimContext) -> types.CallToolResult:
        async def send(method: str, **params: Any) -> dict[str, Any]:
            request = TaskRequest(method=method, params={"taskId": created.task_id, **params})
            result = await context.session.send_request(request, Response)
            return result.model_dump(by_alias=True)

        if self.cancels:
            await send("tasks/cancel")
        while True:
            task = await send("tasks/get")
            status = task["status"]
            if self.states[-1:] != [status]:
                self.states.append(status)
            if status == "input_required":
                answers = {name: {"action": self.action, "content": {}} for name in task["inputRequests"]}
                await send("tasks/update", inputResponses=answers)
            elif status == "completed":
                return types.CallToolResult.model_validate(task["result"])
            elif status != "working":
                return types.CallToolResult(content=[], is_error=True)
            await asyncio.sleep(task["pollIntervalMs"] / 1000)


class Response(types.Result):
    model_config = {"extra": "allow"}


def target() -> str | StdioServerParameters:
    if sys.argv[1].startswith("http"):
        return sys.argv[1]
    return StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))


async def is_file(client: Client, path: str) -> bool:
    return not (await client.call_tool("stat", {"path": path})).is_error


async def check_approvals(mode: str, action: Literal["accept", "decline"]) -> None:
    questions: list[str] = []

    async def answer(_context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action=action, content={} if action == "accept" else None)

    async with Client(target(), mode=mode, elicitation_callback=answer) as client:
        result = await client.call_tool("run", {"command": "touch py-approved; echo text"})
        is_accepted = action == "accept"
        check(f"{mode} {action}", result.is_error != is_accepted and await is_file(client, "py-approved") == is_accepted, result)
        check(f"{mode} {action}: question", len(questions) == 1 and "py-approved" in questions[0], questions)
        if is_accepted:
            await client.call_tool("delete_path", {"path": "py-approved"})


async def check_tasks() -> None:
    async def unused(_context: object, _params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="cancel")

    async def call(tasks: Tasks, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        async with Client(target(), mode="2026-07-28", elicitation_callback=unused, extensions=[tasks]) as client:
            return await client.call_tool(tool, arguments)

    tasks = Tasks()
    result = await call(tasks, "slow_compute", {"seconds": 1})
    check("a task with a result", tasks.states == ["working", "completed"] and result.structured_content["stdout"] == "computed\n", result)

    tasks = Tasks(cancels=True)
    await call(tasks, "slow_compute", {"seconds": 987651})
    ps = await asyncio.create_subprocess_exec("ps", "-eo", "args=", stdout=asyncio.subprocess.PIPE)
    output = (await ps.communicate())[0]
    check("a cancelled task leaves no process", tasks.states == ["cancelled"] and b"sleep 987651\n" not in output, tasks.states)

    for action in ("decline", "accept"):
        tasks = Tasks(action)
        result = await call(tasks, "run", {"command": "echo text"})
        check(f"a task asks: {action}", "input_required" in tasks.states and result.is_error == (action == "decline"), result)


for mode in ("2026-07-28", "legacy"):
    for action in ("decline", "accept"):
        asyncio.run(check_approvals(mode, action))
asyncio.run(check_tasks())
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
