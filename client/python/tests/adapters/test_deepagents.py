"""The backend of Deep Agents, beyond LangChain's own tests."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspaces import Workspaces

import jig
from jig.adapters.deepagents import JigSandbox

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adapters"


@pytest.fixture
def sandbox(address: str) -> Iterator[JigSandbox]:
    with jig.Client(address) as client:
        sandbox = JigSandbox.create(client)
        yield sandbox
        sandbox.close()


def test_output_is_merged_in_order(sandbox: JigSandbox) -> None:
    result = sandbox.execute("echo 1; echo 2 >&2; echo 3; exit 4")
    assert (result.output, result.exit_code, result.truncated) == ("1\n2\n3\n", 4, False)
    timed_out = sandbox.execute("echo x; sleep 60", timeout=1)
    assert timed_out.output == "x\n\nThe command was killed after 1 s."
    assert timed_out.exit_code == 124


def test_paths_of_the_system(sandbox: JigSandbox) -> None:
    entries = sandbox.ls("/etc").entries
    assert entries and {"path": "/etc/passwd", "is_dir": False} in entries
    matches = sandbox.grep("agent", "/etc/passwd").matches
    assert matches and matches[0]["path"] == "/etc/passwd"
    assert sandbox.upload_files([("/etc/x", b"")])[0].error == "permission_denied"


def test_grep(sandbox: JigSandbox) -> None:
    sandbox.write("/workspace/a/.hidden", "x (y)\n")
    sandbox.write("/workspace/.git/config", "x (y)\n")
    result = sandbox.grep("x (y)", "/workspace")
    assert result.matches == [{"path": "/workspace/a/.hidden", "line": 1, "text": "x (y)"}]
    sandbox.write("/workspace/b", "x\n" * 20)
    assert sandbox.grep("x", max_count=3).truncated


def test_edit_keeps_ends_of_lines(sandbox: JigSandbox) -> None:
    sandbox.upload_files([("/workspace/f", b"a\r\nb\r\n")])
    assert sandbox.edit("/workspace/f", "a\nb", "c\nd").occurrences == 1
    assert sandbox.download_files(["/workspace/f"])[0].content == b"c\r\nd\r\n"


def test_example(capsys: pytest.CaptureFixture[str], workspaces: Workspaces) -> None:
    runpy.run_path(str(EXAMPLES / "deep_agent.py"))
    assert capsys.readouterr().out.splitlines() == [
        "write_file: Updated file /workspace/greet.sh",
        "execute: hello from the sandbox",
    ]
    assert not workspaces.used
