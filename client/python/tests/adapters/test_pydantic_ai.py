"""The workspace backend of Pydantic AI, beyond its own suite."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pydantic_ai.workspaces import (
    Workspace,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceUnavailableError,
)
from workspaces import Workspaces

import jig
from jig.adapters.pydantic_ai import JigWorkspaceBackend

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adapters"


def attach(client: jig.AsyncClient) -> JigWorkspaceBackend:
    return JigWorkspaceBackend(client, WorkspaceRef(provider="jig", id=client.workspace))


async def test_output_is_complete_or_an_error(client: jig.AsyncClient) -> None:
    backend = attach(client)
    result = await backend.run("seq 1000000", shell=True)
    assert len(result.stdout) == 6888896
    with pytest.raises(WorkspaceOutputLimitError):
        await backend.run("seq 3000000", shell=True)


async def test_links_are_followed_as_commands_do(client: jig.AsyncClient) -> None:
    workspace = Workspace(attach(client))
    await workspace.run("echo x > file; ln -s file link; ln -s /etc/passwd out", shell=True)
    assert await workspace.read_text("link") == "x\n"
    assert "agent" in await workspace.read_text("out")
    with pytest.raises(PermissionError):
        await workspace.write_text("out", "")


async def test_a_ref_of_another_provider_is_refused(client: jig.AsyncClient) -> None:
    with pytest.raises(ValueError, match="must be of 'jig'"):
        JigWorkspaceBackend(client, WorkspaceRef(provider="e2b", id="x"))
    with pytest.raises(WorkspaceUnavailableError):
        await JigWorkspaceBackend(client, WorkspaceRef(provider="jig", id="x")).working_dir()


def test_example(capsys: pytest.CaptureFixture[str], workspaces: Workspaces) -> None:
    runpy.run_path(str(EXAMPLES / "pydantic_ai_agent.py"))
    assert capsys.readouterr().out == "The script printed: hello from the sandbox\n"
    assert not workspaces.used
