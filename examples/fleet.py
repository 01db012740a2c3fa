"""Submits a job to a fleet of jigd with a plain NATS client, and prints its result and its output.

Usage: fleet.py SERVER QUEUE[.WORKSPACE] COMMAND
For example: fleet.py nats://127.0.0.1:4222 build.app "make test"

With JIG_SIGNING_KEY_FILE and JIG_PRINCIPAL (such as key:ci), it signs the message. Without them, the
job has the rights of the key that the queue maps to. docs/fleet.md describes the message.
Needs nats-py, and stubs in PYTHONPATH: see "A model's first call in Python" in README.md.
"""

import asyncio
import hashlib
import hmac
import json
import os
import sys
import uuid
from pathlib import Path

import nats
from jig.v1 import fleet_pb2, invoke_service_pb2, job_service_pb2

STREAM = "JIG_JOBS"
SESSION = "plain-client"
MAX_ATTEMPTS = 5
RETRY_DELAY_SEC = 1
WAIT_SEC = 600


def sign(key, *parts):
    """Returns the signature of the parts of a message, each after its length as 4 bytes."""
    signed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(key, signed, hashlib.sha256).hexdigest()


def job_id(queue, request_id):
    """Returns the id of a job, under which the fleet stores its record."""
    digest = hashlib.sha256(f"{queue}/{request_id}".encode()).hexdigest()
    return f"fleet-{digest[:32]}"


async def publish(jetstream, target, command, request_id):
    """Publishes a job. A repetition with the same request id never runs it twice."""
    params = json.dumps({"command": command})
    request = job_service_pb2.SubmitJobRequest(
        tool="run", params_json=params, store_artifacts=True
    )
    subject, body = f"jig.jobs.{target}", request.SerializeToString()
    headers = {"Nats-Msg-Id": request_id, "Jig-Session": SESSION}
    if key_file := os.environ.get("JIG_SIGNING_KEY_FILE"):
        headers["Jig-Principal"] = principal = os.environ["JIG_PRINCIPAL"]
        texts = [text.encode() for text in (subject, request_id, principal, SESSION)]
        headers["Jig-Signature"] = sign(Path(key_file).read_bytes().strip(), *texts, body)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            await jetstream.publish(subject, body, headers=headers)
            return
        except nats.errors.Error:
            if attempt == MAX_ATTEMPTS:
                raise
            await asyncio.sleep(RETRY_DELAY_SEC)


async def wait_for_end(jetstream, key):
    """Waits until a job has ended. Returns its state, its result and its complete output."""
    records = await jetstream.key_value(f"{STREAM}_records")
    watcher = await records.watch(key)
    async for entry in watcher:
        # None separates the current record from later ones.
        if entry is not None:
            record = fleet_pb2.FleetJobRecord.FromString(entry.value)
            if record.state == fleet_pb2.FLEET_JOB_STATE_ENDED:
                break
    await watcher.stop()

    objects = await jetstream.object_store(f"{STREAM}_results")
    result = record.job.result
    if record.result_object:
        stored = await objects.get(record.result_object)
        result = invoke_service_pb2.InvokeResponse.FromString(stored.data)
    output = {}
    for artifact in record.artifacts:
        if artifact.missing_reason:
            print(artifact.path, artifact.missing_reason, file=sys.stderr)
        elif artifact.object:
            output[artifact.path] = (await objects.get(artifact.object)).data
    return job_service_pb2.JobState.Name(record.job.state), result, output


async def main():
    if len(sys.argv) != 4:
        sys.exit("usage: fleet.py SERVER QUEUE[.WORKSPACE] COMMAND")
    server, target, command = sys.argv[1:]
    client = await nats.connect(server)
    jetstream = client.jetstream()
    request_id = uuid.uuid4().hex
    key = job_id(target.split(".")[0], request_id)
    await publish(jetstream, target, command, request_id)
    state, result, output = await asyncio.wait_for(wait_for_end(jetstream, key), WAIT_SEC)
    await client.close()

    print(key, state)
    print(result.text or result.error.message)
    for path, data in output.items():
        print(f"{path}: {len(data)} bytes")
    sys.exit(0 if state == "JOB_STATE_SUCCEEDED" else 1)


asyncio.run(main())
