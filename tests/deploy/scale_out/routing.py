"""Checks that Envoy, with the shipped configuration, sends all calls of a workspace to one daemon.

Arguments: the programs envoy and jig, and a directory with tls/, keys/ and ca.crt. `run` prepares names and files.
"""

import collections
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import grpc
import yaml
from jig.v1 import daemon_service_pb2 as daemon_api
from jig.v1 import daemon_service_pb2_grpc as daemon_grpc
from jig.v1 import job_service_pb2 as jobs
from jig.v1 import job_service_pb2_grpc as jobs_grpc
from jig.v1 import process_service_pb2 as processes
from jig.v1 import process_service_pb2_grpc as processes_grpc
from jig.v1 import tool_service_pb2 as tools
from jig.v1 import tool_service_pb2_grpc as tools_grpc
from jig.v1 import transfer_service_pb2 as transfer
from jig.v1 import transfer_service_pb2_grpc as transfer_grpc

ENVOY, JIG = sys.argv[1:3]
SCRATCH = pathlib.Path(sys.argv[3])
DAEMONS = ["jigd-0", "jigd-1", "jigd-2"]
WORKSPACES = [f"project-{number}" for number in range(100)]
ROUTER = pathlib.Path(__file__).parents[3] / "deploy/kubernetes/scale-out/router.yaml"
SHUTDOWN_DELAY_SEC = 6
ENVOY_DRAIN_SEC = 8
# Longer than the default timeout of a route in Envoy, 15 s.
SILENCE_SEC = 20

KEY = ("authorization", f"Bearer {os.environ['JIG_KEY']}")
TLS = ssl.create_default_context(cafile=SCRATCH / "ca.crt")
CREDENTIALS = grpc.ssl_channel_credentials((SCRATCH / "ca.crt").read_bytes())


class Daemon:
    """A daemon with all workspaces, in directories of its own, as a pod with a volume of its own."""

    def __init__(self, name):
        self.name = name
        self.address = f"127.0.0.{10 + DAEMONS.index(name)}"
        self.home = SCRATCH / name
        self.work = self.home / "work"
        for workspace in WORKSPACES:
            (self.work / workspace).mkdir(parents=True)
            (self.work / workspace / "daemon").write_text(name)
        tables = "".join(
            f'[[workspaces]]\nname = "{workspace}"\npath = "{self.work / workspace}"\n\n' for workspace in WORKSPACES
        )
        (self.home / "config").mkdir()
        (self.home / "config/jigd.toml").write_text(tables)
        self.spawn()

    def spawn(self):
        arguments = [
            JIG, "serve", "--listen", f"{self.address}:50051", "--config", self.home / "config/jigd.toml",
            "--state-dir", self.home / "state", "--keys", SCRATCH / "keys/keys.toml", "--log", "json",
            "--tls-cert", SCRATCH / "tls/tls.crt", "--tls-key", SCRATCH / "tls/tls.key",
            "--shutdown-delay", f"{SHUTDOWN_DELAY_SEC}s", "--drain-timeout", "5s",
        ]  # fmt: skip
        log = (self.home / "log").open("a")
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True)

    def start(self):
        self.spawn()
        self.await_listening()

    def await_listening(self):
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), (self.home / "log").read_text()

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(30)


class Envoy:
    def __init__(self, configuration, status_port=9902):
        log = (SCRATCH / "envoy.log").open("a")
        options = "--concurrency 2 --log-level warning --disable-hot-restart --drain-strategy immediate"
        arguments = [ENVOY, "-c", configuration, *options.split(), "--drain-time-s", str(ENVOY_DRAIN_SEC)]
        self.process = subprocess.Popen(arguments, stdout=log, stderr=log)
        status = f"http://127.0.0.1:{status_port}"
        until(lambda: http(f"{status}/ready") == (200, "LIVE\n"), "Envoy is ready")
        until(lambda: gauge("membership_healthy", status) == len(DAEMONS), "Envoy finds the daemons")
        # Envoy merges updates of a ring within a second.
        time.sleep(1.5)

    def end(self):
        self.process.terminate()
        self.process.wait(30)


def until(condition, what, timeout_sec=60):
    end = time.monotonic() + timeout_sec
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"not within {timeout_sec} s: {what}\n{(SCRATCH / 'envoy.log').read_text()[-4000:]}")


def http(url, headers={}):
    context = TLS if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def gauge(name, status="http://127.0.0.1:9902"):
    """A statistic of the cluster of the daemons."""
    _, text = http(f"{status}/stats/prometheus")
    prefix = f'envoy_cluster_{name}{{envoy_cluster_name="jigd"}} '
    return next(int(line.removeprefix(prefix)) for line in text.splitlines() if line.startswith(prefix))


def connect(host="localhost"):
    # Separate channels use separate connections.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", "localhost")]
    return grpc.secure_channel(f"{host}:50051", CREDENTIALS, options)


def metadata(workspace, **more):
    return [KEY, ("jig-workspace", workspace), *((f"jig-{name.replace('_', '-')}", value) for name, value in more.items())]


def daemon_of(channel, workspace):
    """The daemon that answers, from the file in its copy of the workspace."""
    request = tools.ReadFileRequest(path="daemon")
    return tools_grpc.ToolServiceStub(channel).ReadFile(request, metadata=metadata(workspace), timeout=30).content


def run(channel, workspace, command, **more):
    stub = tools_grpc.ToolServiceStub(channel)
    return stub.Run(tools.RunRequest(command=command), metadata=metadata(workspace, **more), timeout=60)


def error_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def report(passed, name, detail=""):
    print("ok   " if passed else "FAIL ", name, f"({detail})" if detail else "", flush=True)
    report.failed = getattr(report, "failed", False) or not passed


class Service:
    """A Service of Kubernetes: new connections go to one pod, and existing ones stay."""

    def __init__(self, address, pod):
        self.pod = pod
        self.socket = socket.create_server((address, 50051))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.socket.accept()
            try:
                pod = socket.create_connection((self.pod, 50051))
            except OSError:
                client.close()
                continue
            for one, other in ((client, pod), (pod, client)):
                threading.Thread(target=self.copy, args=(one, other), daemon=True).start()

    def copy(self, one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Load:
    """Reads a file of every workspace, over and over, and counts the errors of each workspace."""

    def __init__(self, host="localhost"):
        self.host = host
        self.errors = collections.defaultdict(collections.Counter)
        self.answers = collections.defaultdict(set)
        self.calls = 0
        self.done = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(WORKSPACES[part::4],)) for part in range(4)]
        for thread in self.threads:
            thread.start()

    def work(self, workspaces):
        # A thread and a connection for each daemon's workspaces: calls that wait must not delay others.
        inner = [threading.Thread(target=self.read, args=(workspaces[part::5],)) for part in range(5)]
        for thread in inner:
            thread.start()
        for thread in inner:
            thread.join()

    def read(self, workspaces):
        channel = connect(self.host)
        while not self.done.is_set():
            for workspace in workspaces:
                if self.done.is_set():
                    return
                try:
                    self.answers[workspace].add(daemon_of(channel, workspace))
                except grpc.RpcError as error:
                    self.errors[workspace][f"{error.code().name}: {error.details()}"] += 1
                self.calls += 1
                time.sleep(0.01)

    def end(self):
        self.done.set()
        for thread in self.threads:
            thread.join()


def places(channel):
    return {workspace: daemon_of(channel, workspace) for workspace in WORKSPACES}


def check_routes(place):
    channels = [connect() for _ in range(4)]
    again = [{workspace: daemon_of(channel, workspace) for workspace in WORKSPACES} for channel in channels]
    report(all(other == place for other in again), "all calls of a workspace reach one daemon", "100 workspaces, 5 connections")
    named = {}
    for workspace in WORKSPACES:
        request = urllib.request.Request("https://localhost:50051/readyz", headers={"jig-workspace": workspace})
        with urllib.request.urlopen(request, timeout=10, context=TLS) as response:
            named[workspace] = response.headers["x-jig-daemon"]
    report(named == place, "Envoy names the daemon of a workspace")
    counts = collections.Counter(place.values())
    report(len(counts) == 3 and min(counts.values()) >= 15, "each daemon has workspaces", str(dict(counts)))


def check_without_workspace(channel):
    stub = tools_grpc.ToolServiceStub(channel)
    code, text = error_of(lambda: stub.ReadFile(tools.ReadFileRequest(path="daemon"), metadata=[KEY], timeout=10))
    report(code == "INVALID_ARGUMENT" and "set jig-workspace" in text, "a call without a workspace is rejected", f"{code}: {text}")
    status, text = http("https://localhost:50051/v1/agent-tools/invoke-batch")
    report(status == 400 and "set jig-workspace" in text, "an HTTP request without a workspace is rejected", str(status))
    info = daemon_grpc.DaemonServiceStub(channel).GetInfo(daemon_api.GetInfoRequest(), metadata=[KEY], timeout=10)
    report(len(info.workspaces) == 100, "every daemon can answer GetInfo")
    report(http("https://localhost:50051/readyz")[0] == 200, "every daemon can answer probes")
    code, text = error_of(lambda: daemon_of(channel, "absent"))
    report(code == "NOT_FOUND" and "absent" in text, "the daemon rejects an unknown workspace")


def check_query(place):
    """`?workspace=` of HTTP has the same route as the header. Jobs are known to their own daemon only."""
    channel = connect()
    found = 0
    chosen = WORKSPACES[:12]
    for workspace in chosen:
        request = jobs.SubmitJobRequest(tool="read_file", params_json='{"path": "daemon"}')
        job = jobs_grpc.JobServiceStub(channel).SubmitJob(request, metadata=metadata(workspace), timeout=10).job
        headers = {"authorization": KEY[1]}
        status, _ = http(f"https://localhost:50051/v1/jobs/{job.job_id}?workspace={workspace}", headers)
        other = next(other for other in WORKSPACES if place[other] != place[workspace])
        elsewhere, _ = http(f"https://localhost:50051/v1/jobs/{job.job_id}?workspace={other}", headers)
        found += status == 200 and elsewhere == 404
    report(found == len(chosen), "the query ?workspace= selects the same daemon", f"{found} of {len(chosen)} jobs")


def check_stream(results):
    """A command that is silent for longer than the default timeouts of a proxy."""
    stub = processes_grpc.ProcessServiceStub(connect())
    started = time.monotonic()
    request = processes.StartRequest(command=f"echo begin; sleep {SILENCE_SEC}; echo end")
    try:
        output, first = b"", None
        for event in stub.Start(request, metadata=metadata(WORKSPACES[0])):
            if event.WhichOneof("event") == "stdout":
                first = first or time.monotonic() - started
                output += event.stdout.data
        took = time.monotonic() - started
        results["stream"] = output == b"begin\nend\n" and first < SILENCE_SEC / 2 and took >= SILENCE_SEC, f"{took:.1f} s"
    except grpc.RpcError as error:
        results["stream"] = False, error.details()


def check_transfer(channel):
    content = os.urandom(24 << 20)
    stub = transfer_grpc.TransferServiceStub(channel)

    def parts():
        start = transfer.UploadStart(path="large", size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        yield transfer.UploadRequest(start=start)
        for offset in range(0, len(content), 1 << 20):
            yield transfer.UploadRequest(chunk=transfer.UploadChunk(offset=offset, data=content[offset : offset + (1 << 20)]))

    stub.Upload(parts(), metadata=metadata(WORKSPACES[1], request_id="large"), timeout=60)
    back = b"".join(part.data for part in stub.Download(transfer.DownloadRequest(path="large"), metadata=metadata(WORKSPACES[1]), timeout=60))
    report(back == content, "a file of 24 MiB goes up and down")


def check_latency(place):
    """Medians of pairs of calls: through Envoy, and to the daemon itself."""
    workspace = WORKSPACES[2]
    through = connect()
    direct = connect(f"127.0.0.{10 + DAEMONS.index(place[workspace])}")
    times = {through: [], direct: []}
    for _ in range(1500):
        for channel, taken in times.items():
            started = time.perf_counter()
            daemon_of(channel, workspace)
            taken.append(time.perf_counter() - started)
    medians = [statistics.median(taken) * 1000 for taken in (times[direct], times[through])]
    added = medians[1] - medians[0]
    report(added < 5, "Envoy adds less than 5 ms", f"read_file p50: direct {medians[0]:.2f} ms, through Envoy {medians[1]:.2f} ms, added {added:.2f} ms")


def check_drain(daemons, place):
    """SIGTERM to one daemon: its workspaces wait for it, and all others go on."""
    victim = daemons[1]
    own = [workspace for workspace in WORKSPACES if place[workspace] == victim.name]
    channel = connect()
    request = jobs.SubmitJobRequest(tool="run", params_json='{"command": "echo kept"}')
    stub = jobs_grpc.JobServiceStub(channel)
    job = stub.SubmitJob(request, metadata=metadata(own[0]), timeout=10).job
    stub.WaitJob(jobs.WaitJobRequest(job_id=job.job_id), metadata=metadata(own[0]), timeout=30)

    load = Load()
    victim.process.send_signal(signal.SIGTERM)
    time.sleep(SHUTDOWN_DELAY_SEC - 2)
    early = {workspace: errors for workspace, errors in load.errors.items() if errors}
    report(not early, "no call fails during the shutdown delay", f"{load.calls} calls")
    report(gauge("membership_healthy") == 2, "the health check sees that a daemon drains")
    victim.process.wait(30)
    started = time.monotonic()
    code, text = error_of(lambda: daemon_of(channel, own[0]))
    waited = time.monotonic() - started
    report(code == "UNAVAILABLE" and waited < 40, "calls for a daemon that is down fail as UNAVAILABLE", f"after {waited:.1f} s: {text}")
    load.end()
    others = {workspace: errors for workspace, errors in load.errors.items() if workspace not in own}
    report(not others, "no call of another daemon's workspaces fails", f"{load.calls} calls, {len(WORKSPACES) - len(own)} workspaces {others or ''}")
    codes = {error.split(":")[0] for workspace in own for error in load.errors[workspace]}
    report(codes == {"UNAVAILABLE"}, "its own workspaces see UNAVAILABLE only", str(codes))
    report(all(load.answers[workspace] == {place[workspace]} for workspace in WORKSPACES), "no workspace moves")

    # A call that waits for the daemon succeeds when it is back.
    answer = {}
    waiting = threading.Thread(target=lambda: answer.update(call=error_of(lambda: run(connect(), own[1], "echo x", request_id="waits"))))
    waiting.start()
    time.sleep(0.5)
    victim.start()
    waiting.join()
    report(answer["call"][0] == "OK", "a call waits for a daemon that starts again", str(answer["call"]))
    until(lambda: gauge("membership_healthy") == 3, "the daemon is healthy again")
    report(places(channel) == place, "after its restart, the daemon has its workspaces again")
    kept = stub.GetJob(jobs.GetJobRequest(job_id=job.job_id), metadata=metadata(own[0]), timeout=10).job
    report(kept.state == jobs.JOB_STATE_SUCCEEDED, "and still knows their jobs")


def check_crash(daemons, place):
    """SIGKILL to a daemon during a command with a request id: Envoy repeats the call, and the daemon does not repeat the command."""
    victim = daemons[2]
    own = [workspace for workspace in WORKSPACES if place[workspace] == victim.name]
    command = "echo once >>count; sleep 3"
    answers = {}

    def call(workspace, **more):
        try:
            answers[workspace] = run(connect(), workspace, command, **more)
        except grpc.RpcError as error:
            answers[workspace] = error.code().name

    with_id, without = own[:2]
    threads = [threading.Thread(target=call, args=(with_id,), kwargs={"request_id": "crash"}), threading.Thread(target=call, args=(without,))]
    for thread in threads:
        thread.start()
    until(lambda: all((victim.work / workspace / "count").exists() for workspace in (with_id, without)), "both commands run")
    victim.end(signal.SIGKILL)
    victim.start()
    for thread in threads:
        thread.join()
    counts = [(victim.work / workspace / "count").read_text() for workspace in (with_id, without)]
    report(counts == ["once\n", "once\n"], "no command runs twice after a crash")
    outcome = getattr(answers[with_id], "outcome", answers[with_id])
    report(outcome == tools.OUTCOME_DAEMON_LOST, "with a request id, the repeat says that the daemon died", str(outcome))
    report(answers[without] == "UNAVAILABLE", "without one, the call fails and is not repeated", str(answers[without]))
    until(lambda: gauge("membership_healthy") == 3, "the daemon is healthy again")


def check_pod_moves(daemons, place):
    """A pod starts again on another node, with its volumes and another address behind its Service: its workspaces go with it."""
    victim = daemons[1]
    own = [workspace for workspace in WORKSPACES if place[workspace] == victim.name]
    channel = connect()
    stub = jobs_grpc.JobServiceStub(channel)
    request = jobs.SubmitJobRequest(tool="run", params_json='{"command": "echo kept"}')
    job = stub.SubmitJob(request, metadata=metadata(own[0]), timeout=10).job
    stub.WaitJob(jobs.WaitJobRequest(job_id=job.job_id), metadata=metadata(own[0]), timeout=30)
    run(channel, own[0], "echo once >>moved", request_id="moves")

    load = Load()
    victim.end(signal.SIGTERM)
    service, victim.address = victim.address, "127.0.0.21"
    victim.start()
    Service(service, victim.address)
    until(lambda: gauge("membership_healthy") == 3, "the daemon is healthy again")
    time.sleep(1)
    load.end()
    others = {workspace: errors for workspace, errors in load.errors.items() if workspace not in own}
    report(not others, "no call of another daemon's workspaces fails when a pod moves", f"{load.calls} calls {others or ''}")
    # On a loaded machine, a daemon may start for longer than Envoy lets calls wait.
    codes = {error.split(":")[0] for errors in load.errors.values() for error in errors}
    report(codes <= {"UNAVAILABLE"}, "calls of its own workspaces wait, or fail as UNAVAILABLE", f"{sum(errors.total() for errors in load.errors.values())} failed")
    report(all(load.answers[workspace] == {place[workspace]} for workspace in WORKSPACES), "its workspaces go with it, and no other moves")
    kept = stub.GetJob(jobs.GetJobRequest(job_id=job.job_id), metadata=metadata(own[0]), timeout=10).job
    report(kept.state == jobs.JOB_STATE_SUCCEEDED, "it has their jobs")
    run(channel, own[0], "echo once >>moved", request_id="moves")
    report((victim.work / own[0] / "moved").read_text() == "once\n", "it has their files, and the results of request ids")


def check_lost_volume(daemons, place):
    """A pod starts again with empty volumes: its workspaces are new, and their jobs and request ids are unknown."""
    victim = daemons[2]
    own = next(workspace for workspace in WORKSPACES if place[workspace] == victim.name)
    channel = connect()
    stub = jobs_grpc.JobServiceStub(channel)
    job = stub.SubmitJob(jobs.SubmitJobRequest(tool="run", params_json='{"command": "true"}'), metadata=metadata(own), timeout=10).job
    run(channel, own, "echo once >>lost", request_id="lost")
    victim.end(signal.SIGKILL)
    shutil.rmtree(victim.home / "state")
    (victim.work / own / "lost").unlink()
    victim.start()
    until(lambda: gauge("membership_healthy") == 3, "the daemon is healthy again")
    report(daemon_of(channel, own) == victim.name, "a daemon whose volumes are lost keeps its workspaces")
    code, _ = error_of(lambda: stub.GetJob(jobs.GetJobRequest(job_id=job.job_id), metadata=metadata(own), timeout=10))
    report(code == "NOT_FOUND", "it does not know their jobs", code)
    run(channel, own, "echo again >>lost", request_id="lost")
    report((victim.work / own / "lost").read_text() == "again\n", "it does the work of a known request id again")


def check_envoy_drain(envoy):
    """The preStop hook of Envoy's pod lets the calls of clients end, and sends them to another Envoy."""
    text = pathlib.Path("/etc/envoy/envoy.yaml").read_text()
    for one, other in ((" 127.0.0.1, port_value: 50051", " 127.0.0.3, port_value: 50051"), ("port_value: 9901", "port_value: 9911"), ("port_value: 9902", "port_value: 9912")):
        assert one in text
        text = text.replace(one, other)
    second = SCRATCH / "second.yaml"
    second.write_text(text)
    (pod,) = [found for found in yaml.safe_load_all(ROUTER.read_text()) if found["kind"] == "Deployment"]
    hook = pod["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[-1].rstrip().endswith("sleep 45")

    other = Envoy(second, 9912)
    service = Service("127.0.0.2", "127.0.0.1")
    load = Load("127.0.0.2")
    time.sleep(2)
    # The pod is no endpoint of the Service any more, and the kubelet runs the hook.
    service.pod = "127.0.0.3"
    subprocess.run([*hook[:-1], hook[-1].replace("sleep 45", f"sleep {ENVOY_DRAIN_SEC}")], check=True)
    envoy.end()
    time.sleep(1)
    load.end()
    report(not load.errors and load.calls > 100, "no call fails when an Envoy ends and another one runs", f"{load.calls} calls {dict(load.errors) or ''}")
    other.end()


def check_move(daemons, place):
    """With moves, calls for a daemon that is down go to others, and no call fails."""
    victim = daemons[0]
    own = {workspace for workspace in WORKSPACES if place[workspace] == victim.name}
    load = Load()
    victim.end(signal.SIGTERM)
    time.sleep(1)
    moved = places(connect())
    load.end()
    report(not load.errors, "with moves, no call fails when a daemon drains", f"{load.calls} calls {dict(load.errors) or ''}")
    report({workspace for workspace in WORKSPACES if moved[workspace] != place[workspace]} == own, "only its own workspaces move", f"{len(own)} of 100")
    report(set(moved.values()) == set(DAEMONS) - {victim.name}, "they move to both other daemons")
    victim.start()
    until(lambda: gauge("membership_healthy") == 3, "the daemon is healthy again")
    report(places(connect()) == place, "they come back with it")


def main():
    daemons = [Daemon(name) for name in DAEMONS]
    for daemon in daemons:
        daemon.await_listening()
    envoy = Envoy("/etc/envoy/envoy.yaml")
    results = {}
    stream = threading.Thread(target=check_stream, args=(results,))
    stream.start()
    channel = connect()
    place = places(channel)
    check_routes(place)
    check_without_workspace(channel)
    check_query(place)
    check_transfer(channel)
    check_latency(place)
    stream.join()
    report(*results["stream"][:1], "a silent stream lives for its length", results["stream"][1])
    check_drain(daemons, place)
    check_crash(daemons, place)
    check_pod_moves(daemons, place)
    check_lost_volume(daemons, place)
    check_envoy_drain(envoy)

    envoy = Envoy("/etc/envoy/moving.yaml")
    now = places(connect())
    moves = collections.Counter((place[workspace], now[workspace]) for workspace in WORKSPACES if now[workspace] != place[workspace])
    report(not moves, "a second Envoy has the same ring", str(dict(moves) or ""))
    check_move(daemons, place)
    envoy.end()
    for daemon in daemons:
        daemon.end(signal.SIGINT)
    sys.exit(report.failed)


main()
