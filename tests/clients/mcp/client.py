"""The official Python SDK: `client.py (URL | PROGRAM ARGUMENT...)`."""

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters, types

passed = failed = 0


def check(name: str, condition: bool, value: object = None) -> None:
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print(f"FAILED: {name}: {value!r}")


async def check_client(mode: str) -> None:
    target = sys.argv[1]
    if not target.startswith("http"):
        target = StdioServerParameters(command=target, args=sys.argv[2:], env=dict(os.environ))

    async with Client(target, mode=mode) as client:
        expected = mode == "legacy"
        check(f"{mode} is negotiated", (client.protocol_version != "2026-07-28") == expected, client.protocol_version)
        tools = (await client.list_tools()).tools
        check("tools/list", {"run", "read_file"} <= {tool.name for tool in tools}, tools)

        progress: list[str | None] = []

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            progress.append(message)

        result = await client.call_tool("run", {"command": "echo first; sleep 0.5; exit 3"}, progress_callback=on_progress)
        check("tools/call", not result.is_error and result.structured_content["exit_code"] == 3, result)
        check("progress", progress[:1] == ["first"], progress)

        result = await client.call_tool("read_file", {"path": "no such file"})
        check("a failed tool is a result", result.is_error and isinstance(result.content[0], types.TextContent), result)

        resources = (await client.list_resources()).resources
        read = await client.read_resource(resources[-1].uri)
        check("artifacts are resources", len(read.contents) == 1, read)

        calling = asyncio.ensure_future(client.call_tool("run", {"command": "touch py-begun; sleep 987653"}))
        while True:
            stat = await client.call_tool("stat", {"path": "py-begun"})
            if not stat.is_error:
                break
            await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        for _ in range(200):
            ps = await asyncio.create_subprocess_exec("ps", "-eo", "args=", stdout=asyncio.subprocess.PIPE)
            is_gone = b"sleep 987653\n" not in (await ps.communicate())[0]
            if is_gone:
                break
            await asyncio.sleep(0.05)
        check("cancel leaves no process", is_gone)
        await client.call_tool("delete_path", {"path": "py-begun"})


for mode in ("2026-07-28", "legacy"):
    asyncio.run(check_client(mode))
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
