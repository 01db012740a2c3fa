"""The operations and errors of the package have all of the contract."""

import ast
import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import assert_type

import generate
import jig
from jig.contract import METHODS, decode, encode
from jig.v1 import messages
from jig.v1.tool_service_pb2 import ENCODING_BASE64, ReadFileRequest, RunResponse

PACKAGE = Path(jig.__file__).parent

# The RPCs whose operations have other parameters than the fields of their requests.
RENAMED = {
    "run": {"argv"},
    "start": {"argv"},
    "stream": {"argv", "pty", "on_disconnect", "stdin_open", "keep_alive_sec"},
    "attach": {"keep_alive_sec"},
    "list_files": {"page_token"},
    "list_dir": {"page_size", "page_token"},
    "write_file": {"encoding"},
    "submit_job": {"params", "params_json"},
    "invoke": {"params_json", "request_id", "with_result_json"},
    "download_tree": {"compression"},
    "watch_files": {"keep_alive_sec"},
}
RPCS = {
    "Run": "run",
    "ListFiles": "list_files",
    "ListDirectory": "list_dir",
    "ReadFile": "read_file",
    "StatPath": "stat",
    "WriteFile": "write_file",
    "EditFile": "edit_file",
    "ApplyPatch": "apply_patch",
    "Search": "search",
    "CreateDirectory": "create_directory",
    "MovePath": "move_path",
    "DeletePath": "delete_path",
    "ReadNotebook": "read_notebook",
    "EditNotebook": "edit_notebook",
    "FetchUrl": "fetch_url",
    "LastCommand": "last_command",
    "SubmitJob": "submit_job",
    "DecideApproval": "decide_approval",
    "CreateRule": "create_rule",
    "UpdateRule": "update_rule",
    "Invoke": "invoke",
    "DownloadTree": "download_tree",
    "WatchFiles": "watch_files",
    "CreateWorkspace": "create_workspace",
    "UpdateWorkspace": "update_workspace",
}
# `handle` calls the tool `wait_job` by its name.
WITHOUT_OPERATION = {"AwaitJob"}


@pytest.mark.parametrize(
    ("rpc", "name"), [*RPCS.items(), ("Start", "start"), ("Start", "stream"), ("Attach", "attach")]
)
def test_operations_have_all_fields(rpc: str, name: str) -> None:
    function = getattr(jig.Client, name)
    assert function.__doc__
    fields = set(METHODS[rpc].request.DESCRIPTOR.fields_by_name) - RENAMED.get(name, set())
    assert fields <= set(inspect.signature(function).parameters)


def test_each_rpc_has_an_operation() -> None:
    assert set(METHODS) - set(texts()) == WITHOUT_OPERATION


def texts() -> Iterator[str]:
    """All texts in the source files of the package."""
    for file in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_each_reason_has_a_class() -> None:
    listed = list(generate.reasons(generate.ERRORS_PAGE.read_text()))
    assert len(listed) > 40
    for reason, code, *_ in listed:
        kind = jig.CallError.of_reason(reason)
        assert (kind.reason, kind is jig.CallError) == (reason, False)
        error = kind("text", code=code)
        assert (str(error), error.code, error.violations) == ("text", code, ())


def test_unset_fields_are_none() -> None:
    assert decode(messages.RunResponse, RunResponse()).exit_code is None
    assert decode(messages.RunResponse, RunResponse(exit_code=0)).exit_code == 0
    request = encode(ReadFileRequest, {"path": "a", "start_line": None, "encoding": "BASE64"})
    assert request == ReadFileRequest(path="a", encoding=ENCODING_BASE64)


def test_values_of_a_newer_daemon_are_numbers() -> None:
    response = RunResponse()
    response.ParseFromString(b"\x08\x63")
    assert str(decode(messages.RunResponse, response).outcome) == "99"


def check_types(client: jig.Client, async_client: jig.AsyncClient) -> None:
    """Type checkers know what the methods of both clients return. This is never called."""
    assert_type(client.run("true"), messages.RunResponse)
    assert_type(client.stream("true"), jig.Stream[jig.ProcessEvent])
    assert_type(client.start("true"), jig.Process)
    assert_type(client.with_options(retries=0), jig.Client)

    async def check() -> None:
        assert_type(await async_client.run("true"), messages.RunResponse)
        assert_type(async_client.stream("true"), jig.AsyncStream[jig.ProcessEvent])
        assert_type(await async_client.start("true"), jig.AsyncProcess)
        assert_type(await (await async_client.start("true")).wait(), messages.ProcessExited)

    asyncio.run(check())
