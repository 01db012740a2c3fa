"""Workspace backend of Pydantic AI.

    agent.run_sync("…", workspace=JigWorkspaceBackend(client))

The first operation creates a workspace, or attaches to the one that `ref` names. Whoever holds the
ref deletes it: `client.delete_workspace(ref.id)`.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.protocol import validate_timeout

from jig.adapters.execution import (
    COMMAND_NOT_FOUND_EXIT_CODE,
    MAX_OUTPUT_BYTES,
    follow_links,
    for_commands,
    is_inside,
    is_unavailable,
    python_errors,
    read_file,
    real_path,
    run_command,
)
from jig.client import AsyncClient
from jig.errors import CallError
from jig.v1.messages import WorkspaceDetails

PROVIDER = "jig"
# Prints the type and the size of each path, after links. Links that lead nowhere have neither.
DESCRIBE = 'for path do stat -L -c "%F/%s" -- "$path" 2>/dev/null || echo /; done'


class JigWorkspaceBackend(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """Runs commands and keeps files in one workspace."""

    def __init__(
        self, client: AsyncClient, ref: WorkspaceRef | None = None, *, ttl_sec: int | None = None
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"the ref is of {ref.provider!r}; it must be of {PROVIDER!r}")
        self._client = client
        self._ref = ref
        self._ttl_sec = ttl_sec
        self._creation: asyncio.Task[WorkspaceDetails] | None = None
        self._connected: tuple[AsyncClient, str] | None = None
        self._lock = asyncio.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def working_dir(self) -> str:
        return (await self._connect())[1]

    async def _connect(self) -> tuple[AsyncClient, str]:
        """The client of the workspace, and the path at which commands see it."""
        with backend_errors():
            async with self._lock:
                if self._connected is None:
                    if self._ref is None:
                        await self._create()
                    assert self._ref is not None
                    workspace = await self._client.get_workspace(self._ref.id)
                    client = self._client.with_options(workspace=workspace.name)
                    self._connected = client, workspace.mount_path
                return self._connected

    async def _create(self) -> None:
        """Creates the workspace. A cancelled caller leaves the creation to the next one."""
        if self._creation is None:
            creating = self._client.create_workspace(ttl_sec=self._ttl_sec)
            self._creation = asyncio.create_task(creating)
            self._creation.add_done_callback(self._keep_ref)
        await asyncio.shield(self._creation)

    def _keep_ref(self, creation: asyncio.Task[WorkspaceDetails]) -> None:
        if creation.cancelled() or creation.exception():
            self._creation = None
        else:
            self._ref = WorkspaceRef(provider=PROVIDER, id=creation.result().name)

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        validate_timeout(timeout)
        if isinstance(command, str) != shell:
            raise TypeError("a string needs `shell=True`, and a sequence needs `shell=False`")
        client, _ = await self._connect()
        with backend_errors():
            try:
                result = await run_command(for_commands(client), command, env=env, timeout=timeout)
            except CallError as error:
                if error.reason != "COMMAND_NOT_FOUND":
                    raise
                return CommandResult(
                    exit_code=COMMAND_NOT_FOUND_EXIT_CODE, stdout="", stderr=error.message
                )
        if result.outcome == "TIMED_OUT":
            message = f"the command was killed after {timeout} s"
            raise WorkspaceTimeoutError(message, stdout=result.stdout, stderr=result.stderr)
        if result.outcome == "CANCELLED":
            raise WorkspaceUnavailableError("the command was killed with its workspace")
        if result.stdout_truncated or result.stderr_truncated:
            raise WorkspaceOutputLimitError(
                "the output exceeds 10 MiB: redirect it to a file",
                limit=MAX_OUTPUT_BYTES,
                stdout=result.stdout,
                stderr=result.stderr,
            )
        return CommandResult(
            exit_code=result.shell_exit_code, stdout=result.stdout, stderr=result.stderr
        )

    async def read_bytes(self, path: str) -> bytes:
        client, root = await self._connect()
        with backend_errors(), python_errors():
            return await read_file(client, path, root)

    async def write_bytes(self, path: str, data: bytes) -> None:
        client, _ = await self._connect()
        with backend_errors(), python_errors():
            await follow_links(client, path, lambda target: client.upload(data, target))

    async def stat(self, path: str) -> FileEntry:
        client, root = await self._connect()
        with backend_errors(), python_errors():
            if is_inside(path, root):
                status = await client.stat(path)
                if status.type != "SYMLINK":
                    return to_entry(path, status.type == "DIRECTORY", status.size_bytes)
            is_dir, size = (await describe(client, [path]))[0]
        if is_dir is None:
            raise FileNotFoundError(f"{path}: no such file or directory")
        return to_entry(path, is_dir, size)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        client, _ = await self._connect()
        with backend_errors(), python_errors():
            entries = (await follow_links(client, path, client.list_dir)).entries
            paths = [posixpath.join(path, entry.name) for entry in entries]
            links = [
                path for path, entry in zip(paths, entries, strict=True) if entry.type == "SYMLINK"
            ]
            targets = dict(zip(links, await describe(client, links), strict=True))
        return [
            to_entry(path, *targets.get(path, (entry.type == "DIRECTORY", entry.size_bytes)))
            for path, entry in zip(paths, entries, strict=True)
        ]

    async def make_dir(self, path: str) -> None:
        client, _ = await self._connect()
        with backend_errors(), python_errors():
            await follow_links(client, path, client.create_directory)

    async def remove(self, path: str) -> None:
        client, root = await self._connect()
        resolved = posixpath.normpath(path)
        if f"{root}/".startswith(f"{resolved.rstrip('/')}/"):
            raise ValueError(f"{path} is or contains the working directory")
        with backend_errors(), python_errors():
            await follow_links(
                client, path, lambda target: client.delete_path(target, recursive=True)
            )

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def realpath(self, path: str) -> str:
        client, _ = await self._connect()
        with backend_errors():
            return await real_path(client, path)


async def describe(client: AsyncClient, paths: list[str]) -> list[tuple[bool | None, int | None]]:
    """Whether each path leads to a directory, and the size of the file that it leads to."""
    if not paths:
        return []
    result = await client.run(["/bin/sh", "-c", DESCRIBE, "sh", *paths])
    result.check()
    described: list[tuple[bool | None, int | None]] = []
    for line in result.stdout.splitlines():
        kind, _, size = line.rpartition("/")
        described.append((kind == "directory", int(size)) if kind else (None, None))
    return described


def to_entry(path: str, is_dir: bool | None, size: int | None) -> FileEntry:
    name = posixpath.basename(path)
    return FileEntry(name=name, path=path, is_dir=bool(is_dir), size=None if is_dir else size)


@contextmanager
def backend_errors() -> Generator[None, None, None]:
    try:
        yield
    except CallError as error:
        if is_unavailable(error):
            raise WorkspaceUnavailableError(error.message) from error
        raise
