"""Python executor of smolagents.

    CodeAgent(tools=[…], model=…, executor=JigExecutor(client))

A Python process in a sandbox keeps the variables of the agent. It is started with the first code.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from typing import Any, cast

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import get_tools_definition_code
from smolagents.utils import AgentError

from jig.client import Client
from jig.process import Process
from jig.results import Output

DEFAULT_TIMEOUT_SEC = 120
MAX_LOG_CHARACTERS = 100_000
# The tool for the final answer imports packages that it can do without.
OPTIONAL_IMPORT = re.compile(r"^(?:import|from) (?:PIL|numpy)\b.*$", re.M)
IF_INSTALLED = r"try:\n    \g<0>\nexcept ImportError:\n    pass"

# Reads a JSON line for each code: its text and the longest duration. Writes a JSON line with the
# result to a copy of its standard output, which code that prints does not reach.
DRIVER = r"""
import ast, contextlib, io, json, os, signal, sys, traceback
replies = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
scope = {"__name__": "__main__"}

def run(code):
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
        exec(compile(tree, "<code>", "exec"), scope)
        return eval(compile(ast.Expression(last.value), "<code>", "eval"), scope)
    exec(compile(tree, "<code>", "exec"), scope)

def expire(*_):
    raise TimeoutError("the code exceeded its timeout")

signal.signal(signal.SIGALRM, expire)
for line in sys.stdin:
    request = json.loads(line)
    logs = io.StringIO()
    reply = {"output": None, "error": "", "final": None}
    with contextlib.redirect_stdout(logs), contextlib.redirect_stderr(logs):
        try:
            signal.alarm(request["timeout_sec"])
            value = run(request["code"])
            reply["output"] = None if value is None else repr(value)
        except BaseException as error:
            if type(error).__name__ == "FinalAnswerException":
                reply["final"] = error.value
            else:
                reply["error"] = traceback.format_exc(limit=-5)
        finally:
            signal.alarm(0)
    reply["logs"] = logs.getvalue()[-request["max_logs"]:]
    replies.write(json.dumps(reply) + "\n")
    replies.flush()
"""


class JigExecutor(RemotePythonExecutor):
    """Runs the code of an agent in the workspace of a client.

    `cleanup` ends the process. Packages cannot be installed: the system of a sandbox is read-only.
    """

    def __init__(
        self,
        client: Client,
        *,
        interpreter: str = "python3",
        timeout_sec: int = DEFAULT_TIMEOUT_SEC,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__([], AgentLogger(level=LogLevel.ERROR), allow_pickle)
        self._client = client.with_options(retries=0)
        self._interpreter = interpreter
        self._timeout_sec = timeout_sec
        self._process: Process | None = None

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Defines the tools in the process."""
        if "final_answer" in tools:
            self._patch_final_answer_with_exception(tools["final_answer"])
        code = get_tools_definition_code(tools)
        if code:
            self.run_code_raise_errors(OPTIONAL_IMPORT.sub(IF_INSTALLED, code))

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs code. Raises `AgentError` if it raises an error."""
        request = {
            "code": code,
            "timeout_sec": self._timeout_sec,
            "max_logs": MAX_LOG_CHARACTERS,
        }
        if self._process is None:
            self._process = self._client.start([self._interpreter, "-uc", DRIVER])
        self._process.write(json.dumps(request) + "\n")
        reply = self._read_reply(self._process)
        if reply["final"] is not None:
            value = self._deserialize_final_answer(reply["final"], self.allow_pickle)
            return CodeOutput(output=value, logs=reply["logs"], is_final_answer=True)
        if reply["error"]:
            raise AgentError(f"{reply['logs']}\n{reply['error']}".strip(), self.logger)
        return CodeOutput(literal(reply["output"]), reply["logs"], is_final_answer=False)

    def _read_reply(self, process: Process) -> dict[str, Any]:
        line = bytearray()
        errors = bytearray()
        for event in process:
            if isinstance(event, Output) and event.stream == "stdout":
                line += event.data
                if line.endswith(b"\n"):
                    return cast("dict[str, Any]", json.loads(line))
            elif isinstance(event, Output):
                errors += event.data
        # Code such as `os._exit` ends the process. The next code starts another one.
        self._process = None
        exited = process.exited
        reason = exited.limit or exited.signal or exited.exit_code if exited else "unknown"
        details = errors.decode(errors="replace").strip()
        raise AgentError(f"the Python process ended ({reason}): {details}", self.logger)

    def cleanup(self) -> None:
        """Ends the process, and forgets the variables."""
        if self._process is not None:
            self._process.close()
            self._process = None


def literal(text: str | None) -> Any:
    """The value of a literal, such as a number or a list, or else its text."""
    if text is None:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        logging.getLogger(__name__).debug("the result is no literal")
        return text
