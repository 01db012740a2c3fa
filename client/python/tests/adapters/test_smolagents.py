"""The Python executor of smolagents, which ships no suite for executors."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from smolagents import FinalAnswerTool
from smolagents.utils import AgentError
from workspaces import Workspaces

import jig
from jig.adapters.smolagents import JigExecutor

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adapters"


@pytest.fixture
def executor(address: str) -> Iterator[JigExecutor]:
    with jig.Client(address) as client:
        workspace = client.create_workspace()
        executor = JigExecutor(client.with_options(workspace=workspace.name), timeout_sec=2)
        yield executor
        executor.cleanup()
        client.delete_workspace(workspace.name)


def test_variables_are_kept(executor: JigExecutor) -> None:
    assert executor("x = [1, 2]\nprint('log')").logs == "log\n"
    result = executor("x + [3]")
    assert (result.output, result.is_final_answer) == ([1, 2, 3], False)
    executor.send_variables({"name": {"a": (1, 2)}})
    assert executor("name['a']").output == (1, 2)
    assert executor("open").output == "<built-in function open>"


def test_the_final_answer_is_recognized(executor: JigExecutor) -> None:
    final_answer: Any = FinalAnswerTool
    executor.send_tools({"final_answer": final_answer()})
    result = executor("final_answer({'a': [1]})")
    assert (result.output, result.is_final_answer) == ({"a": [1]}, True)


def test_errors(executor: JigExecutor) -> None:
    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("print('before')\n1 / 0")
    with pytest.raises(AgentError, match="exceeded its timeout"):
        executor("while True: pass")
    executor("x = 1")
    with pytest.raises(AgentError, match=r"process ended \(7\)"):
        executor("import os; os._exit(7)")
    with pytest.raises(AgentError, match="'x' is not defined"):
        executor("x")


def test_output_of_programs_is_not_a_reply(executor: JigExecutor) -> None:
    result = executor("import os; os.system('echo {}'); os.write(1, b'{}\\n'); 5")
    assert result.output == 5


def test_example(capsys: pytest.CaptureFixture[str], workspaces: Workspaces) -> None:
    runpy.run_path(str(EXAMPLES / "smolagents_agent.py"))
    assert capsys.readouterr().out.splitlines()[-1] == "The sum is 6."
    assert not workspaces.used
