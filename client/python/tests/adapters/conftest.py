"""The daemon of the adapters' tests, and a workspace for each test."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import jig
from jig.daemon import guarded_process

sys.path.append(str(Path(__file__).parent))

from workspaces import Workspaces

PROGRAM = os.environ.get("JIG_TEST_JIGD", "jigd")


@pytest.fixture(scope="session")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Workspaces:
    return Workspaces(tmp_path_factory.mktemp("workspaces"))


@pytest.fixture(scope="session", autouse=True)
def address(workspaces: Workspaces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon that the clients of frameworks find in `JIG_ADDRESS`. Returns its address."""
    with (
        tempfile.TemporaryDirectory(prefix="jig-") as private,
        pytest.MonkeyPatch.context() as patch,
    ):
        config = Path(private) / "jigd.toml"
        config.write_text(workspaces.config())
        address = f"unix:{private}/jig.sock"
        command = [PROGRAM, f"--config={config}", f"--listen={address}"]
        command += [f"--state-dir={private}/state", "--drain-timeout=0s"]
        with guarded_process(command, Path(private) / "log") as process:
            assert process.stdout is not None
            assert process.stdout.readline(), (Path(private) / "log").read_text()
            patch.setenv("JIG_ADDRESS", address)
            workspaces.address = address
            yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[jig.AsyncClient]:
    """A client of a workspace of its own."""
    async with jig.AsyncClient(address) as client:
        workspace = await client.create_workspace()
        yield client.with_options(workspace=workspace.name)
        await client.delete_workspace(workspace.name)
