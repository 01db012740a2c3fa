"""Jobs, approvals, events and the daemon itself."""

import threading
import time

import pytest

import jig
from jig.v1 import reasons
from jig.v1.messages import Event, Job


def test_jobs(client: jig.Client) -> None:
    job = client.submit_job("run", {"command": "echo one; sleep 0.5; echo two"}, priority=1)
    assert client.wait_job(job.job_id, wait_sec=0.01).state in ("QUEUED", "RUNNING")
    events = list(client.watch_job(job.job_id, stdout_offset=1))
    output = b"".join(event.data for event in events if isinstance(event, jig.Output))
    assert output == b"ne\ntwo\n"
    last = events[-1]
    assert isinstance(last, Job) and last.state == "SUCCEEDED" and last.result is not None
    assert last.result.ok and last.result.data is not None and last.result.data["exit_code"] == 0
    assert client.wait_job(job.job_id) == client.get_job(job.job_id) == last
    assert job.job_id in [known.job_id for known in client.list_jobs(states=["SUCCEEDED"])]
    with pytest.raises(reasons.JobNotFound):
        client.get_job("01HZZZZZZZZZZZZZZZZZZZZZZZ")
    with pytest.raises(reasons.UnknownTool):
        client.submit_job("no_such_tool", {})


def test_cancel_job(client: jig.Client) -> None:
    job = client.submit_job("run", {"command": "sleep 600"}, queue="cancelled")
    assert client.cancel_job(job.job_id).state == "CANCELLED"


def test_a_request_id_makes_one_job(client: jig.Client) -> None:
    request_id = f"nightly-{time.monotonic_ns()}"
    once = client.with_options(request_id=request_id)
    first = once.submit_job("run", {"command": "true"})
    assert once.submit_job("run", {"command": "true"}).job_id == first.job_id
    with pytest.raises(reasons.RequestIdReused):
        once.submit_job("run", {"command": "false"})
    assert client.submit_job("run", {"command": "true"}).job_id != first.job_id


def test_approvals(client: jig.Client) -> None:
    job = client.submit_job("run", {"command": "echo needs-approval; exit 4"})
    approvals = client.watch_approvals()
    approval = next(item for item in approvals if item.session == job.session)
    approvals.close()
    assert (approval.tool, approval.state) == ("run", "PENDING")
    assert approval.parameters[0].name == "command"
    assert client.get_approval(approval.approval_id) == approval
    decided = client.decide_approval(approval.approval_id, "ALLOW", comment="fine")
    assert decided.approval is not None and decided.approval.state == "ALLOWED"
    result = client.wait_job(job.job_id).result
    assert result is not None and result.exit_code == 4
    with pytest.raises(reasons.ApprovalDecided):
        client.decide_approval(approval.approval_id, "DENY")
    assert approval.approval_id in [
        known.approval_id for known in client.list_approvals(decided=True)
    ]


def test_a_denied_call_is_an_error(daemon: jig.Daemon) -> None:
    errors: list[jig.CallError] = []

    def run(client: jig.Client) -> None:
        try:
            client.run("echo needs-approval")
        except jig.CallError as error:
            errors.append(error)

    with jig.Client(daemon.address, session="denied") as client:
        thread = threading.Thread(target=run, args=(client,))
        thread.start()
        with client.watch_approvals() as approvals:
            approval = next(item for item in approvals if item.session == "denied")
        client.decide_approval(approval.approval_id, "DENY", comment="not today")
        thread.join()
    (error,) = errors
    assert isinstance(error, reasons.ApprovalDenied) and "not today" in error.message
    assert error.metadata["state"] == "DENIED"


def test_rules(client: jig.Client) -> None:
    rule = client.create_rule("run", "DENY", pattern="never-this", name="never")
    with pytest.raises(reasons.PolicyDenied):
        client.run("echo never-this")
    assert not client.update_rule(rule.rule_id, enabled=False).enabled
    assert client.run("echo never-this").ok
    assert [known.name for known in client.list_rules()][:1] == ["never"]
    client.delete_rule(rule.rule_id)
    with pytest.raises(reasons.RuleNotFound):
        client.delete_rule(rule.rule_id)


def test_events_and_artifacts(client: jig.Client) -> None:
    client.run("echo text")
    events = [event for event in client.watch_events(follow=False) if isinstance(event, Event)]
    assert [event.type for event in events] == ["tool_call_started", "tool_call_finished"]
    last = events[-1]
    assert last.record is not None and last.record["status"] == "success"
    later = client.watch_events(after_sequence=last.sequence, types=["tool_call_finished"])
    client.run("true")
    event = next(later)
    assert isinstance(event, Event) and event.sequence == last.sequence + 2
    later.close()
    (artifact,) = client.list_artifacts(step=1)
    assert client.read_artifact(artifact.path) == b"text\n"
    with pytest.raises(reasons.ArtifactNotFound):
        client.read_artifact("logs/none.txt")
    assert client.list_sessions()


def test_info(client: jig.Client) -> None:
    info = client.get_info()
    assert info.isolation is not None and info.isolation.level in ("L1", "L2", "L3")
    assert info.workspaces[0].mount_path == "/workspace"
    assert info.caller is not None and info.caller.role == "ADMIN"
    with pytest.raises(reasons.UnknownWorkspace):
        client.with_options(workspace="no-such-workspace").get_info()
