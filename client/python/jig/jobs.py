"""Operations on jobs, approvals, rules, artifacts and events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jig.caller import Caller, close_later
from jig.contract import decode_event
from jig.results import Output
from jig.steps import Emit, Steps, StreamSteps, next_item, operation, streaming
from jig.v1.messages import (
    CancelJobResponse,
    GetJobResponse,
    Job,
    JobState,
    SubmitJobResponse,
    WaitJobResponse,
)


class JobOperations(Caller):
    """Calls of tools in the background. Jobs and their results survive a restart of the daemon."""

    @operation
    def submit_job(
        self,
        tool: str,
        params: Mapping[str, Any],
        *,
        dialect: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        fleet: bool = False,
        retry_if_lost: bool = False,
        store_artifacts: bool = False,
    ) -> Steps[Job]:
        """Queues a call of a tool. Returns when the job is stored.

        `params` are JSON values by name. A higher `priority` (0; -100 to 100) comes first in the
        `queue` (`default`). A command without `timeout_sec` has no timeout.

        With `fleet`, any daemon of the fleet runs the job. If that daemon dies, the job is lost,
        or with `retry_if_lost` runs again on another one. With `store_artifacts`, `read_artifact`
        with its `job_id` reads its artifacts at every daemon.

        Raises `InvalidParams`, `UnknownTool`, `ToolDisabled`, `ResourceExhausted` (full queue) or
        `FleetUnavailable`.
        """
        response = yield from self._call(
            "SubmitJob",
            SubmitJobResponse,
            tool=tool,
            params_json=json.dumps(params),
            dialect=dialect,
            queue=queue,
            priority=priority,
            fleet=fleet,
            retry_if_lost=retry_if_lost,
            store_artifacts=store_artifacts,
        )
        return response_job(response)

    @operation
    def get_job(self, job_id: str) -> Steps[Job]:
        """Returns a job, with its `result` once it has ended. Raises `JobNotFound`."""
        return self._job("GetJob", GetJobResponse, job_id=job_id)

    @operation
    def list_jobs(
        self, *, states: Sequence[JobState] = (), queue: str | None = None
    ) -> Steps[list[Job]]:
        """Lists the jobs of the workspace without their results, newest first."""
        return self._pages("ListJobs", Job, "jobs", states=states, queue=queue, page_size=1000)

    @operation
    def wait_job(self, job_id: str, *, wait_sec: float | None = None) -> Steps[Job]:
        """Waits until a job has ended, and returns it. After `wait_sec`, returns it as it is.

        Raises `JobNotFound`.
        """
        wait_ms = None if wait_sec is None else round(wait_sec * 1000)
        return self._job("WaitJob", WaitJobResponse, job_id=job_id, wait_ms=wait_ms)

    @operation
    def cancel_job(self, job_id: str) -> Steps[Job]:
        """Cancels a job, waits until it has ended, and returns it. Raises `JobNotFound`."""
        return self._job("CancelJob", CancelJobResponse, job_id=job_id)

    @streaming
    def watch_job(
        self, job_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> StreamSteps[Job | Output]:
        """Streams a job after each change of its state, and the output of its command.

        Output begins after the given numbers of bytes. The last element is the ended job. The
        stream continues after a lost connection. Closing it does not cancel the job.

        Raises `JobNotFound`.
        """
        offsets = {"stdout": stdout_offset, "stderr": stderr_offset}

        def next_request() -> tuple[str, Mapping[str, object]]:
            values = {f"{stream}_offset": offset for stream, offset in offsets.items()}
            return "WatchJob", {"job_id": job_id, **values}

        with close_later(self._messages(next_request)) as messages:
            while (message := (yield from next_item(messages))) is not None:
                event: Job | Output | None = decode_event(message)
                if isinstance(event, Output):
                    offsets[event.stream] = event.offset + len(event.data)
                if event is not None:
                    yield Emit(event)

    def _job(self, rpc: str, kind: type[Any], **values: object) -> Steps[Job]:
        response = yield from self._call(rpc, kind, **values)
        return response_job(response)


def response_job(response: Any) -> Job:
    """The job of a response, which always has one."""
    job: Job = response.job
    return job
