"""Environment and code executor of the Agent Development Kit, which ships no suite for them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, cast

import pytest
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from workspaces import Workspaces

import jig
from jig.adapters.google_adk import JigCodeExecutor, JigEnvironment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adapters"


async def test_environment(address: str, workspaces: Workspaces) -> None:
    async with jig.AsyncClient(address) as client:
        environment = JigEnvironment(client, env_vars={"NAME": "value"})
        with pytest.raises(RuntimeError, match="not initialized"):
            await environment.execute("true")
        await environment.initialize()
        await environment.initialize()
        assert environment.is_initialized and environment.working_dir == Path("/workspace")

        result = await environment.execute("echo $NAME; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == ("value\n", "err\n", 3)
        timed_out = await environment.execute("echo x; sleep 60", timeout=0.5)
        assert timed_out.timed_out and timed_out.stdout == "x\n"

        await environment.write_file(Path("a/b.bin"), b"\x00\xff")
        assert await environment.read_file(Path("/workspace/a/b.bin")) == b"\x00\xff"
        with pytest.raises(FileNotFoundError):
            await environment.read_file(Path("missing"))
        await environment.close()
        await environment.close()
        assert not workspaces.used


def test_code_executor(address: str) -> None:
    with jig.Client(address) as client:
        workspace = client.create_workspace()
        inside = client.with_options(workspace=workspace.name)
        executor = JigCodeExecutor(client=inside, timeout_seconds=1)

        def execute(code: str, *files: File) -> Any:
            return executor.execute_code(cast(Any, None), CodeExecutionInput(code, list(files)))

        code = "print(open('in.csv').read()); open('out.txt', 'w').write('x')"
        result = execute(code, File("in.csv", "YSxi", "text/csv"))
        assert (result.stdout, result.stderr, result.exit_code) == ("a,b\n", "", 0)
        assert result.output_files == [File("out.txt", b"x", "text/plain")]
        assert "ZeroDivisionError" in execute("1/0").stderr
        assert "stopped after 1 s" in execute("while True: pass").stderr
        assert client.with_options(workspace=workspace.name).list_files().files == []
        client.delete_workspace(workspace.name)


def test_example(capsys: pytest.CaptureFixture[str], workspaces: Workspaces) -> None:
    runpy.run_path(str(EXAMPLES / "adk_agent.py"))
    output = capsys.readouterr().out.splitlines()
    assert len(output) == 3 and "Wrote greet.sh" in output[0]
    assert "hello from the sandbox" in output[1] and output[2] == "Done."
    assert not workspaces.used
