"""Sandbox backend of LangChain's Deep Agents.

    create_deep_agent(model=…, backend=JigSandbox(client))

Files are listed, searched and changed by calls of the daemon. Reading pages of files and globs run
Python in the sandbox, as for other backends.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable
from typing import TypeVar

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GrepMatch,
    GrepResult,
    LsResult,
    WriteResult,
)
from deepagents.backends.sandbox import BaseSandbox

from jig.adapters.execution import LINK_REASONS, MAX_OUTPUT_BYTES, whole_seconds
from jig.client import Client
from jig.errors import CallError
from jig.v1.messages import Edit

T = TypeVar("T")

DEFAULT_TIMEOUT_SEC = 600
MAX_MATCHES = 10_000
# The command writes both streams to one, so that their order is kept.
MERGE_STREAMS = "exec 2>&1\n"
FILE_ERRORS = {
    "FILE_NOT_FOUND": "file_not_found",
    "DIRECTORY_NOT_FOUND": "file_not_found",
    "NOT_A_DIRECTORY": "file_not_found",
    "NOT_A_FILE": "is_directory",
    "PERMISSION_DENIED": "permission_denied",
    "POLICY_DENIED": "permission_denied",
    "PATH_ESCAPE": "permission_denied",
    "SYMLINK_BLOCKED": "permission_denied",
    "INVALID_PARAMS": "invalid_path",
}


class JigSandbox(BaseSandbox):
    """Runs commands and keeps files in the workspace of a client.

    Several threads can use it. Relative paths begin in the workspace.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        # A call that times out in the program ends its command.
        self._commands = client.with_options(retries=0)
        self._directory = ""

    @classmethod
    def create(cls, client: Client, *, ttl_sec: int | None = None) -> JigSandbox:
        """Creates a workspace. `close` deletes it."""
        workspace = client.create_workspace(ttl_sec=ttl_sec)
        return cls(client.with_options(workspace=workspace.name))

    def close(self) -> None:
        """Deletes the workspace with its files."""
        self._client.delete_workspace(self._client.workspace)

    @property
    def id(self) -> str:
        return self._client.workspace or self._client.address

    @property
    def directory(self) -> str:
        """Path at which commands see the workspace."""
        if not self._directory:
            self._directory = self._client.run(["pwd", "-P"]).stdout.rstrip("\n")
        return self._directory

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a shell command. By default, it is killed after 10 minutes; 0 means no timeout."""
        seconds = DEFAULT_TIMEOUT_SEC if timeout is None else timeout or None
        result = self._commands.run(
            MERGE_STREAMS + command,
            timeout_sec=whole_seconds(seconds),
            max_output_bytes=MAX_OUTPUT_BYTES,
        )
        output = result.stdout
        if result.outcome == "TIMED_OUT":
            output += f"\nThe command was killed after {seconds} s."
        return ExecuteResponse(output, result.shell_exit_code, result.stdout_truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [self._upload(path, content) for path, content in files]

    def _upload(self, path: str, content: bytes) -> FileUploadResponse:
        try:
            check_absolute(path)
            self._client.upload(content, path)
        except CallError as error:
            return FileUploadResponse(path, FILE_ERRORS.get(error.reason, error.message))
        return FileUploadResponse(path)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            check_absolute(path)
            return FileDownloadResponse(path, content=self._client.read_bytes(path))
        except CallError as error:
            reason = FILE_ERRORS.get(error.reason, error.message)
            return FileDownloadResponse(path, error=reason)

    def ls(self, path: str) -> LsResult:
        def list_entries() -> LsResult:
            entries = self._client.list_dir(path or ".").entries
            return LsResult(
                entries=[
                    FileInfo(
                        path=posixpath.join(path, entry.name),
                        is_dir=entry.type == "DIRECTORY",
                        size=entry.size_bytes,
                        modified_at=entry.modify_time.isoformat() if entry.modify_time else "",
                    )
                    for entry in entries
                ]
            )

        return native(list_entries, lambda: super(JigSandbox, self).ls(path))

    def write(self, file_path: str, content: str) -> WriteResult:
        response = self._upload(file_path, content.encode())
        if response.error:
            return WriteResult(error=f"Failed to write file '{file_path}': {response.error}")
        return WriteResult(path=file_path)

    def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        def replace() -> EditResult:
            edit = Edit(old_string, new_string, occurrence="ALL" if replace_all else None)
            result = self._client.edit_file(file_path, [edit])
            return EditResult(path=file_path, occurrences=result.edits[0].replacements)

        # The other implementation reports what is wrong, and matches other ends of lines.
        return native(
            replace,
            lambda: super(JigSandbox, self).edit(file_path, old_string, new_string, replace_all),
            of_errors=True,
        )

    def delete(self, file_path: str) -> DeleteResult:
        def delete() -> DeleteResult:
            self._client.delete_path(file_path, recursive=True)
            return DeleteResult(path=file_path)

        return native(delete, lambda: super(JigSandbox, self).delete(file_path), of_errors=True)

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
    ) -> GrepResult:
        def search() -> GrepResult:
            limit = min(max_count or MAX_MATCHES, MAX_MATCHES)
            found = self._client.search(
                pattern,
                path=path,
                is_regex=False,
                case_sensitive=True,
                globs=[glob] if glob else [],
                exclude_globs=[f"**/{name}/**" for name in self.grep_exclude_dirs],
                context_lines=0,
                max_results=limit,
                hidden=True,
                no_ignore=True,
            )
            matches = [
                GrepMatch(
                    path=posixpath.join(self.directory, match.file),
                    line=match.line,
                    text=match.content,
                )
                for match in found.matches
            ]
            return GrepResult(matches=matches, truncated=found.truncated or found.timed_out)

        def run_grep() -> GrepResult:
            return super(JigSandbox, self).grep(pattern, path, glob, max_count=max_count)

        # A pattern with a slash is relative to `path` here, and to the workspace in the daemon.
        if not pattern or "\n" in pattern or (glob and "/" in glob):
            return run_grep()
        return native(search, run_grep, of_errors=True)

    # `BaseSandbox` has other implementations of these, which run commands.

    async def als(self, path: str) -> LsResult:
        return await asyncio.to_thread(self.ls, path)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await asyncio.to_thread(self.write, file_path, content)

    async def aedit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        return await asyncio.to_thread(self.edit, file_path, old_string, new_string, replace_all)

    async def adelete(self, file_path: str) -> DeleteResult:
        return await asyncio.to_thread(self.delete, file_path)

    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
    ) -> GrepResult:
        return await asyncio.to_thread(self.grep, pattern, path, glob, max_count=max_count)


def native(call: Callable[[], T], otherwise: Callable[[], T], *, of_errors: bool = False) -> T:
    """Calls the daemon. Runs a command for paths outside of the workspace, and for links.

    With `of_errors`, the command also runs after each other error, to report it as others do.
    """
    try:
        return call()
    except CallError as error:
        if of_errors or error.reason in LINK_REASONS or error.reason in FILE_ERRORS:
            return otherwise()
        raise


def check_absolute(path: str) -> None:
    if not path.startswith("/"):
        raise CallError(f"{path!r} is not absolute", reason="INVALID_PARAMS")
