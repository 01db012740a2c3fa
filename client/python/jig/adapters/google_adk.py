"""Environment and code executor of Google's Agent Development Kit.

EnvironmentToolset(environment=JigEnvironment(client))
LlmAgent(code_executor=JigCodeExecutor(client=blocking_client), …)
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import os
import posixpath
import uuid
from pathlib import Path
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import (
    CodeExecutionInput,
    CodeExecutionResult,
    File,
)
from google.adk.environment import BaseEnvironment, ExecutionResult
from pydantic import ConfigDict, Field

from jig.adapters.execution import (
    MAX_OUTPUT_BYTES,
    follow_links,
    for_commands,
    python_errors,
    read_file,
    run_command,
    whole_seconds,
    working_dir,
)
from jig.client import AsyncClient, Client

DEFAULT_TIMEOUT_SEC = 120
MAX_OUTPUT_FILES = 100


class JigEnvironment(BaseEnvironment):
    """Runs commands and keeps files in a workspace.

    Without a workspace in the options of the client, `initialize` creates one, and `close` deletes
    it.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        env_vars: dict[str, str] | None = None,
        ttl_sec: int | None = None,
    ) -> None:
        self._of_daemon = client
        self._client = client
        self._env_vars = env_vars
        self._ttl_sec = ttl_sec
        self._created = ""
        self._directory = ""

    async def initialize(self) -> None:
        if self._directory:
            return
        if not self._of_daemon.workspace:
            workspace = await self._of_daemon.create_workspace(ttl_sec=self._ttl_sec)
            self._created = workspace.name
            self._client = self._of_daemon.with_options(workspace=workspace.name)
        self._directory = await working_dir(self._client)
        self.is_initialized = True

    async def close(self) -> None:
        created, self._created, self._directory = self._created, "", ""
        self.is_initialized = False
        if created:
            await self._of_daemon.delete_workspace(created)

    @property
    def working_dir(self) -> Path:
        return Path(self._require_directory())

    def _require_directory(self) -> str:
        if not self._directory:
            raise RuntimeError("the environment is not initialized: call `initialize` first")
        return self._directory

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        self._require_directory()
        result = await run_command(
            for_commands(self._client), command, env=self._env_vars, timeout=timeout
        )
        return ExecutionResult(
            exit_code=result.shell_exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            timed_out=result.outcome == "TIMED_OUT",
        )

    # Tools of the kit give texts as paths.

    async def read_file(self, path: Path) -> bytes:
        with python_errors():
            return await read_file(self._client, os.fspath(path), self._require_directory())

    async def write_file(self, path: Path, content: str | bytes) -> None:
        self._require_directory()
        data = content.encode() if isinstance(content, str) else content
        with python_errors():
            await follow_links(
                self._client, os.fspath(path), lambda target: self._client.upload(data, target)
            )


class JigCodeExecutor(BaseCodeExecutor):
    """Runs blocks of Python code, each as a process of its own, in the workspace of a client.

    Input files are written to the directory of the block before it runs. Files that it creates
    there are its output. Variables are not kept for the next block.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    client: Client = Field(exclude=True)
    """Client of the workspace."""
    interpreter: str = "python3"
    """Program that runs the code."""

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        directory = f".adk/{uuid.uuid4().hex}"
        inputs: dict[str, bytes] = {
            file.name: decode_content(file.content) for file in code_execution_input.input_files
        }
        self.client.create_directory(directory)
        try:
            for name, content in inputs.items():
                self.client.upload(content, posixpath.join(directory, name))
            result = self.client.with_options(retries=0).run(
                [self.interpreter, "-"],
                stdin=code_execution_input.code,
                cwd=directory,
                timeout_sec=whole_seconds(self.timeout_seconds or DEFAULT_TIMEOUT_SEC),
                max_output_bytes=MAX_OUTPUT_BYTES,
            )
            stderr = result.stderr
            if result.outcome == "TIMED_OUT":
                stderr += f"\nThe code was stopped after {result.duration_ms / 1000:.0f} s."
            return CodeExecutionResult(
                stdout=result.stdout,
                stderr=stderr,
                output_files=self._output_files(directory, inputs),
                exit_code=result.shell_exit_code,
            )
        finally:
            self.client.delete_path(directory, recursive=True)

    def _output_files(self, directory: str, inputs: dict[str, bytes]) -> list[File]:
        """The files that the code has created or changed."""
        files: list[File] = []
        listed = self.client.list_files(
            directory, max_results=MAX_OUTPUT_FILES, respect_ignore=False
        )
        for name in listed.files:
            content = self.client.read_bytes(posixpath.join(directory, name))
            if inputs.get(name) != content:
                mime_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
                files.append(File(name=name, content=content, mime_type=mime_type))
        return files


def decode_content(content: Any) -> bytes:
    """The bytes of a file, whose content can be base64."""
    data: bytes = content.encode() if isinstance(content, str) else bytes(content)
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        return data
