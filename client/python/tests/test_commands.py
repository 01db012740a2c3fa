"""Commands: results, streams and processes."""

import threading
import time

import pytest

import jig
from jig.v1 import reasons
from jig.v1.messages import ProcessExited, ProcessStarted


def test_run_returns_how_the_command_ended(client: jig.Client) -> None:
    result = client.run("echo out; echo err >&2; exit 3")
    assert (result.outcome, result.exit_code, result.ok) == ("EXITED", 3, False)
    assert (result.stdout, result.stderr, result.shell_exit_code) == ("out\n", "err\n", 3)
    with pytest.raises(jig.CommandFailed, match="exit code 3: err"):
        result.check()
    assert client.run(["echo", "$HOME"]).stdout == "$HOME\n"


def test_run_takes_all_fields(client: jig.Client) -> None:
    client.create_directory("run-here")
    result = client.run(
        "pwd; echo $NAME; cat; ulimit -n",
        cwd="run-here",
        env={"NAME": "value"},
        stdin="input\n",
        timeout_sec=10,
        limits=jig.LowerLimits(open_files=64),
    )
    assert result.stdout == "/workspace/run-here\nvalue\ninput\n64\n"
    short = client.run("seq 10000", max_output_bytes=100)
    assert short.stdout_truncated and len(short.stdout) < 1000 and short.stdout_bytes == 48894
    whole = client.read_artifact(short.stdout_path)
    assert len(whole) == 48894
    assert client.read_artifact(short.stdout_path, offset=2, limit=3) == whole[2:5]


def test_a_shell_remembers_until_it_is_restarted(client: jig.Client) -> None:
    assert client.run("cd /usr; x=1", shell="remembers").shell_state == "updated"
    assert client.run("pwd; echo $x", shell="remembers").stdout == "/usr\n1\n"
    again = client.run("pwd; echo $x", shell="remembers", restart_shell=True)
    assert again.stdout == "/workspace\n\n"


def test_a_killed_command_has_no_exit_code(client: jig.Client) -> None:
    timed_out = client.run("sleep 60", timeout_sec=1)
    assert (timed_out.outcome, timed_out.exit_code, timed_out.ok) == ("TIMED_OUT", None, False)
    assert timed_out.shell_exit_code == 124
    killed = client.run("kill -KILL $$")
    assert (killed.outcome, killed.signal, killed.shell_exit_code) == ("SIGNALED", "SIGKILL", 137)


def test_a_command_that_cannot_start_is_an_error(client: jig.Client) -> None:
    with pytest.raises(reasons.CommandNotFound):
        client.run(["no-such-program"])
    with pytest.raises(reasons.DirectoryNotFound):
        client.run("true", cwd="no-such-directory")
    with pytest.raises(reasons.InvalidParams) as error:
        client.run("true", timeout_sec=0)
    assert [violation.field for violation in error.value.violations] == ["timeout_sec"]
    assert error.value.call_id and error.value.code == "INVALID_ARGUMENT"


def test_last_command(client: jig.Client) -> None:
    with pytest.raises(reasons.NoCommandHistory):
        client.last_command()
    client.run("echo last")
    assert client.last_command().stdout == "last\n"


def test_stream_has_output_while_the_command_runs(client: jig.Client) -> None:
    events = client.stream("echo one; sleep 0.3; echo two >&2; exit 5")
    started = next(events)
    assert isinstance(started, ProcessStarted) and started.process_id
    assert next(events) == jig.Output("stdout", 0, b"one\n")
    begin = time.monotonic()
    assert next(events) == jig.Output("stderr", 0, b"two\n")
    assert time.monotonic() - begin > 0.1
    exited = next(events)
    assert isinstance(exited, ProcessExited) and exited.exit_code == 5
    assert list(events) == []


def test_a_closed_stream_kills_its_command(client: jig.Client) -> None:
    with client.stream("sleep 600") as events:
        started = next(events)
    assert isinstance(started, ProcessStarted)
    wait_for_end(client, started.process_id)


def test_process_with_a_terminal(client: jig.Client) -> None:
    size = jig.TerminalSize(cols=80, rows=24)
    with client.start("stty size; read line; stty size; cat", pty=size) as process:
        assert read_until(process, b"24 80\r\n")
        process.resize(100, 30)
        process.write("go\n")
        assert read_until(process, b"30 100\r\n")
        process.write(b"x" * 2000 + b"\n")
        assert read_until(process, b"x" * 10)
        process.close_stdin()
        exited = process.wait()
    assert exited.ok and process.exited == exited
    with pytest.raises(reasons.ProcessEnded):
        process.send_signal("SIGTERM")


def test_process_with_pipes(client: jig.Client) -> None:
    with client.start(["cat"]) as process:
        for _ in range(3):
            process.write(b"y" * (1 << 19))
        process.close_stdin()
        received = b"".join(event.data for event in process if isinstance(event, jig.Output))
        assert len(received) == 3 << 19
        with pytest.raises((reasons.StdinClosed, reasons.ProcessEnded)):
            process.write("late")
    with client.start("trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done") as process:
        assert read_until(process, b"ready")
        process.send_signal("SIGTERM")
        assert process.wait().exit_code == 7


def test_a_request_id_starts_one_process(client: jig.Client) -> None:
    once = client.with_options(request_id=f"once-{time.monotonic_ns()}")
    with once.start("echo started; cat") as process, once.start("echo started; cat") as again:
        assert process.process_id == again.process_id
        process.write("x\n")
        assert read_until(again, b"x\n") == b"started\nx\n"


def test_attach_continues_a_process(client: jig.Client) -> None:
    with client.start("echo first; cat", on_disconnect="KEEP") as process:
        assert read_until(process, b"first\n")
        process_id = process.process_id
    with client.attach(process_id, stdout_offset=2) as again:
        assert next(again) == jig.Output("stdout", 2, b"rst\n")
        again.write("second\n")
        assert read_until(again, b"second\n")
    assert process_id in [known.process_id for known in client.list_processes()]
    with client.attach(process_id) as again:
        again.send_signal("SIGKILL")
        assert again.wait().signal == "SIGKILL"
    with pytest.raises(reasons.ProcessNotFound):
        client.attach("01HZZZZZZZZZZZZZZZZZZZZZZZ")


def test_another_thread_can_close_a_process(daemon: jig.Daemon) -> None:
    with jig.Client(daemon.address) as client:
        process = client.start("sleep 600")
        timer = threading.Timer(0.3, process.close)
        timer.start()
        assert list(process) == []
        timer.join()
        with pytest.raises(jig.Unavailable):
            process.wait()
        wait_for_end(client, process.process_id)


def read_until(process: jig.Process, text: bytes) -> bytes:
    received = b""
    for event in process:
        assert isinstance(event, jig.Output), event
        received += event.data
        if text in received:
            break
    return received


def wait_for_end(client: jig.Client, process_id: str) -> None:
    """Waits less than the 30 s that a process with a request id has without a stream."""
    for _ in range(100):
        (process,) = [known for known in client.list_processes() if known.process_id == process_id]
        if process.state == "ENDED":
            assert process.signal == "SIGKILL"
            return
        time.sleep(0.05)
    raise AssertionError("the process has not ended")
