"""Measures calls while the collector runs, is gone, and accepts connections without an answer.

`lost_collector.py ADDRESS COLLECTOR_COMMAND...` starts the collector, with the port in PLAIN_PORT and a key of the daemon in
JIG_KEY. The three states alternate in short blocks, so that noise of the machine affects all of them. Exits with 1 if a lost
collector makes calls slower than the bound. JIG_FULL=1, for a machine without other load, bounds the slowest percent as well."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

ROUNDS, READS, RUNS = 10, 200, 30
STATES = ("up", "gone", "silent")
# A collector that delayed calls would do so by the exporter's timeout of a second. Other load of the machine alone can change
# the median by a factor of two, and the slowest percent by a factor of thirteen.
MAX_RATIO = 3.0
MAX_P99_RATIO = 4.0
MARGIN_SEC = 0.005
P99_MARGIN_SEC = MARGIN_SEC if os.environ.get("JIG_FULL") == "1" else 0.5


class Collector:
    def __init__(self, command):
        self.command, self.process = command, None

    def enter(self, state):
        """Brings the collector into a state."""
        if state == "gone":
            self.stop()
            return
        if self.process is None:
            self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.wait()
        self.process.send_signal(signal.SIGSTOP if state == "silent" else signal.SIGCONT)

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def wait(self):
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", int(os.environ["PLAIN_PORT"]))).close()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit("the collector does not listen")


def measure(connection, method, request, count):
    """Durations of calls, in seconds."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['JIG_KEY']}"}
    durations = []
    for _ in range(count):
        started = time.perf_counter()
        connection.request("POST", f"/jig.v1.ToolService/{method}", json.dumps(request), headers)
        response = connection.getresponse()
        body = response.read()
        durations.append(time.perf_counter() - started)
        if response.status != 200:
            sys.exit(body)
    return durations


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main():
    address, *command = sys.argv[1:]
    connection = http.client.HTTPConnection(address)
    collector = Collector(command)
    calls = {"read_file": ("ReadFile", {"path": "notes.txt"}, READS), "run": ("Run", {"argv": ["true"]}, RUNS)}
    durations = {(state, tool): [] for state in STATES for tool in calls}
    try:
        for round_number in range(ROUNDS):
            for offset in range(len(STATES)):
                state = STATES[(round_number + offset) % len(STATES)]
                collector.enter(state)
                for tool, call in calls.items():
                    durations[state, tool] += measure(connection, *call)
    finally:
        collector.stop()

    failed = False
    for tool in calls:
        up = {share: quantile(durations["up", tool], share) for share in (0.5, 0.99)}
        for state in STATES:
            values = durations[state, tool]
            p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
            print(f"{tool:9} {state:6} {len(values)} calls: p50 {p50 * 1000:.2f} ms (x {p50 / up[0.5]:.2f}), "
                  f"p99 {p99 * 1000:.2f} ms (x {p99 / up[0.99]:.2f}), slowest {max(values) * 1000:.1f} ms")
            failed |= p50 > up[0.5] * MAX_RATIO + MARGIN_SEC or p99 > up[0.99] * MAX_P99_RATIO + P99_MARGIN_SEC
    sys.exit(failed)


main()
