"""Compares how jigd and a plain tonic server follow HTTP/2: `compare.py H2SPEC JIGD TONIC`, with the addresses of both.

Many cases of h2spec expect an error for a second frame. A server may have responded to the first one by then, and h2spec takes the response for a
failure. So a case fails only if it fails in each of several runs.
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

TONIC_RUNS = 2
MAX_JIGD_RUNS = 5

h2spec, jigd, tonic = sys.argv[1:]


def run(address: str, path: str) -> set[str]:
    """Cases that fail in one run."""
    host, port = address.split(":")
    with tempfile.NamedTemporaryFile() as report:
        command = [h2spec, "--strict", "--host", host, "--port", port, "--path", path, "--junit-report", report.name]
        subprocess.run(command, stdout=subprocess.DEVNULL, timeout=50)
        cases = list(ElementTree.parse(report).iter("testcase"))
    assert len(cases) > 100, cases
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return {f"{case.get('package')}: {case.get('classname')}" for case in failed}


def failures(address: str, path: str, runs: int, expected: set[str]) -> set[str]:
    """Cases that fail in all runs. Without unexpected failures, no further run is needed."""
    failed = run(address, path)
    for _ in range(1, runs):
        if failed <= expected:
            break
        failed &= run(address, path)
    return failed


# Each path reads the body of a request before it responds.
of_tonic = failures(tonic, "/grpc.health.v1.Health/Check", TONIC_RUNS, set())
of_jigd = failures(jigd, "/mcp", MAX_JIGD_RUNS, of_tonic)
for title, cases in [("both", of_jigd & of_tonic), ("plain tonic", of_tonic - of_jigd), ("jigd", of_jigd - of_tonic)]:
    for case in sorted(cases):
        print(f"failure of {title}: {case}")
print(f"{len(of_jigd - of_tonic)} failures of jigd only")
