"""Tools for Anthropic's models, and for the worker of a self-hosted environment.

    client.beta.messages.tool_runner(tools=[BashTool(jig_client), TextEditorTool(jig_client)], …)
    EnvironmentWorker(client, tools=agent_toolset(jig_client), …)

The worker of the package `anthropic` runs tools on its own machine. With `agent_toolset`, they run
in a workspace of jig.
"""

from __future__ import annotations

import asyncio
import base64
import posixpath
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from inspect import signature
from typing import Any, ClassVar, cast

import anyio
from anthropic.lib.tools import (
    BetaAsyncBuiltinFunctionTool,
    BetaAsyncFunctionTool,
    ToolError,
    beta_async_tool,
)
from anthropic.lib.tools.agent_toolset import AgentToolContext
from anthropic.types.beta import (
    BetaManagedAgentsAgentToolset20260401BashInput,
    BetaManagedAgentsAgentToolset20260401EditInput,
    BetaManagedAgentsAgentToolset20260401GlobInput,
    BetaManagedAgentsAgentToolset20260401GrepInput,
    BetaManagedAgentsAgentToolset20260401ReadInput,
    BetaManagedAgentsAgentToolset20260401WriteInput,
    BetaToolUnionParam,
)

from jig.adapters.execution import for_commands
from jig.client import AsyncClient
from jig.errors import CallError
from jig.process import AsyncProcess
from jig.results import Output
from jig.v1.messages import Edit

BASH_TIMEOUT_SEC = 120.0
MAX_OUTPUT_BYTES = 100 << 10
MAX_FILE_BYTES = 256 << 10
MAX_BINARY_BYTES = 20 << 20
MAX_MATCHES = 1000
MAX_FILES = 200
WORKSPACE_PREFIX = "session-"
MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": "application/pdf",
}


class DialectTool(BetaAsyncBuiltinFunctionTool):
    """A tool that models know by its type. The daemon has its parameters and results."""

    definition: ClassVar[Mapping[str, str]]

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def to_dict(self) -> BetaToolUnionParam:
        return cast(BetaToolUnionParam, dict(self.definition))

    async def call(self, input: object) -> str:
        arguments = cast("Mapping[str, Any]", input)
        result = await self._client.invoke(self.name, arguments, dialect="anthropic")
        if not result.ok:
            raise ToolError(result.text)
        return result.text


class BashTool(DialectTool):
    """The tool `bash`. Each command has a shell of its own."""

    definition: ClassVar = {"type": "bash_20250124", "name": "bash"}


class TextEditorTool(DialectTool):
    """The tool `str_replace_based_edit_tool`: views, creates and edits files."""

    definition: ClassVar = {
        "type": "text_editor_20250728",
        "name": "str_replace_based_edit_tool",
    }


def agent_toolset(
    client: AsyncClient, *, workspace: str | None = None, ttl_sec: int | None = None
) -> Callable[[AgentToolContext], list[BetaAsyncFunctionTool[Any]]]:
    """Returns the `tools` of an `EnvironmentWorker`: `agent_toolset_20260401` in workspaces.

    Each session has a workspace named after it, which its first tool call creates. A worker that
    takes over a session finds it. `ttl_sec` deletes it. With `workspace`, all sessions share that
    one.
    """

    def tools_of_session(context: AgentToolContext) -> list[BetaAsyncFunctionTool[Any]]:
        session_id = context.session.id if context.session else context.session_id
        name = workspace or workspace_name(session_id or uuid.uuid4().hex)
        toolset = AgentToolset(client, name, ttl_sec=ttl_sec, is_created=workspace is not None)
        return toolset.tools()

    return tools_of_session


def workspace_name(session_id: str) -> str:
    """The name of a session's workspace: letters, digits and hyphens, at most 63."""
    readable = re.sub(r"[^a-z0-9]+", "-", session_id.lower()).strip("-")[:18]
    # Ids differ in the case of letters, too.
    digest = uuid.uuid5(uuid.NAMESPACE_OID, session_id).hex
    return f"{WORKSPACE_PREFIX}{readable}-{digest}".replace("--", "-")


class AgentToolset:
    """The tools of a session."""

    def __init__(
        self, client: AsyncClient, workspace: str, *, ttl_sec: int | None, is_created: bool
    ) -> None:
        self._of_daemon = client
        self._client = client.with_options(workspace=workspace)
        self._workspace = workspace
        self._ttl_sec = ttl_sec
        self._is_created = is_created
        self._lock = asyncio.Lock()

    def tools(self) -> list[BetaAsyncFunctionTool[Any]]:
        return [
            tool("bash", BetaManagedAgentsAgentToolset20260401BashInput, self.bash),
            tool("read", BetaManagedAgentsAgentToolset20260401ReadInput, self.read),
            tool("write", BetaManagedAgentsAgentToolset20260401WriteInput, self.write),
            tool("edit", BetaManagedAgentsAgentToolset20260401EditInput, self.edit),
            tool("glob", BetaManagedAgentsAgentToolset20260401GlobInput, self.glob),
            tool("grep", BetaManagedAgentsAgentToolset20260401GrepInput, self.grep),
        ]

    async def connect(self) -> AsyncClient:
        """The client of the workspace, which exists then."""
        async with self._lock:
            if not self._is_created:
                await self._create()
                self._is_created = True
        return self._client

    async def _create(self) -> None:
        try:
            workspace = await self._of_daemon.create_workspace(
                self._workspace, ttl_sec=self._ttl_sec
            )
        except CallError as error:
            if error.reason != "WORKSPACE_EXISTS":
                raise
        else:
            self._client = self._of_daemon.with_options(workspace=workspace.name)

    @asynccontextmanager
    async def bash(self) -> AsyncGenerator[Callable[..., Awaitable[str]], None]:
        """Runs commands in a shell that keeps its state. It ends with the session."""
        shell: BashSession | None = None

        async def bash(
            command: str | None = None, restart: bool | None = None, timeout_ms: int | None = None
        ) -> str:
            nonlocal shell
            if shell is not None and (restart or shell.has_ended):
                await shell.close()
                shell = None
            if restart:
                return "bash session restarted"
            if not command:
                raise ToolError("bash: command is required")
            shell = shell or await BashSession.start(await self.connect())
            timeout_sec = timeout_ms / 1000 if timeout_ms else BASH_TIMEOUT_SEC
            return await shell.run(command, timeout_sec)

        try:
            yield bash
        finally:
            if shell is not None:
                await shell.close()

    async def read(self, file_path: str, view_range: list[int] | None = None) -> Any:
        """Read a file rooted at the working directory."""
        client = await self.connect()
        media_type = MEDIA_TYPES.get(posixpath.splitext(file_path)[1].lower())
        if media_type:
            data = await client.read_bytes(file_path, limit=MAX_BINARY_BYTES + 1)
            if len(data) > MAX_BINARY_BYTES:
                raise ToolError(f"read: {file_path} is larger than {MAX_BINARY_BYTES} bytes")
            source = {"type": "base64", "media_type": media_type, "data": to_base64(data)}
            kind = "document" if media_type == "application/pdf" else "image"
            return [{"type": kind, "source": source}]
        start, end = None, None
        if view_range:
            start, end = max(view_range[0], 1), view_range[1] if view_range[1] > 0 else None
        result = await client.read_file(
            file_path, start_line=start, end_line=end, max_bytes=MAX_FILE_BYTES
        )
        if result.truncated:
            raise ToolError(
                f"read: the text has more than {MAX_FILE_BYTES} bytes; select lines with view_range"
            )
        return result.content

    async def write(self, file_path: str, content: str) -> str:
        """Write a file, creating parent directories as needed."""
        await (await self.connect()).write_file(file_path, content)
        return f"wrote {len(content.encode())} bytes to {file_path}"

    async def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool | None = None
    ) -> str:
        """Replace text in a file by exact string match."""
        edit = Edit(old_string, new_string, occurrence="ALL" if replace_all else None)
        result = await (await self.connect()).edit_file(file_path, [edit])
        return f"edited {file_path} ({result.edits[0].replacements} replacement(s))"

    async def glob(self, pattern: str, path: str | None = None) -> str:
        """List files matching a glob pattern."""
        client = await self.connect()
        found = await client.list_files(
            path, glob=pattern, max_results=MAX_FILES, respect_ignore=False
        )
        return "\n".join(posixpath.join(path or "", file) for file in found.files) or "no matches"

    async def grep(self, pattern: str, path: str | None = None) -> str:
        """Search file contents for a regular expression."""
        client = await self.connect()
        found = await client.search(
            pattern,
            path=path,
            is_regex=True,
            case_sensitive=True,
            context_lines=0,
            max_results=MAX_MATCHES,
        )
        lines = [f"{match.file}:{match.line}:{match.content}" for match in found.matches]
        if found.truncated:
            lines.append(f"[{MAX_MATCHES} of {found.total_matches} matches]")
        return "\n".join(lines) or "no matches"


def tool(name: str, schema: Any, function: Any) -> BetaAsyncFunctionTool[Any]:
    """Makes a tool whose failed calls of the daemon are errors for the model."""
    if name == "bash":
        return beta_async_tool(name=name, input_schema=schema)(function)

    async def call(**arguments: Any) -> Any:
        try:
            return await function(**arguments)
        except CallError as error:
            raise ToolError(f"{name}: {error.message}") from error

    call.__doc__ = function.__doc__
    call.__signature__ = signature(function)  # type: ignore[attr-defined]
    call.__annotations__ = function.__annotations__
    decorated: Any = beta_async_tool(name=name, input_schema=schema)
    return cast("BetaAsyncFunctionTool[Any]", decorated(call))


class BashSession:
    """A `bash` that runs in one sandbox until it is closed or a command exceeds its timeout."""

    def __init__(self, process: AsyncProcess) -> None:
        self._process = process
        self.has_ended = False

    @classmethod
    async def start(cls, client: AsyncClient) -> BashSession:
        argv = ["/bin/bash", "--noprofile", "--norc"]
        return cls(await for_commands(client).start(argv, env={"TERM": "dumb"}))

    async def run(self, command: str, timeout_sec: float) -> str:
        """Runs a command. Raises `ToolError` unless it exits with 0."""
        mark = uuid.uuid4().hex
        # The text of the mark is not in the input, so that `set -v` does not print it.
        end = f"printf '\\n%s%s %d\\n' {mark[:16]} {mark[16:]} $?"
        try:
            with anyio.fail_after(timeout_sec):
                await self._process.write(f"{{ {command}\n}} </dev/null 2>&1; {end}\n")
                output, exit_code = await self._read_until(mark.encode())
        except TimeoutError:
            await self.close()
            message = f"bash: the command exceeded {timeout_sec:g} s, and the shell was ended"
            raise ToolError(message) from None
        except CallError as error:
            await self.close()
            raise ToolError(f"bash: {error.message}") from error
        except BaseException:
            # The next command would read the output of this one.
            self.has_ended = True
            raise
        if exit_code != 0:
            raise ToolError(output or f"exit code {exit_code}")
        return output

    async def _read_until(self, mark: bytes) -> tuple[str, int]:
        """Reads the end of the output, up to the mark and the exit code after it."""
        output = bytearray()
        is_truncated = False
        async for event in self._process:
            if not isinstance(event, Output):
                continue
            output += event.data
            before, found, after = bytes(output).rpartition(mark)
            if found and after.endswith(b"\n"):
                text = before.removesuffix(b"\n").decode(errors="replace").rstrip("\n")
                prefix = "[output truncated]\n" if is_truncated else ""
                return prefix + text, int(after)
            if len(output) > MAX_OUTPUT_BYTES:
                is_truncated = True
                del output[: len(output) - MAX_OUTPUT_BYTES]
        self.has_ended = True
        text = output.decode(errors="replace").rstrip("\n")
        exited = self._process.exited
        return text, exited.shell_exit_code if exited else -1

    async def close(self) -> None:
        self.has_ended = True
        with anyio.CancelScope(shield=True):
            await self._process.close()


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
