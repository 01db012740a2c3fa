"""A fake control plane of self-hosted environments, from the interface of the package `anthropic`.

It has the endpoints that an `EnvironmentWorker` calls: poll, ack, heartbeat and stop of work items,
and the events of sessions. A script replaces the model: the next tool call comes with the result of
the one before. An item whose lease ends without a stop is queued again.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NOW = "2026-11-01T00:00:00Z"
ENVIRONMENT = "env_1"
LEASE_SEC = 5
BLOCK_SEC = 0.2


@dataclass
class Work:
    """A session and its work item. Guarded by the lock of the plane."""

    session_id: str
    script: list[tuple[str, dict[str, Any]]]
    state: str = "queued"
    last_heartbeat: str = ""
    lease_end: float = 0.0
    stop_requested: bool = False
    claims: int = 0
    forced_stops: int = 0
    events: list[dict[str, Any]] = field(default_factory=lambda: [])

    def results(self) -> list[tuple[str, bool]]:
        """Text and failure of each result."""
        return [
            (event["content"][0]["text"] if event["content"] else "", bool(event.get("is_error")))
            for event in self.events
            if event["type"] == "user.tool_result"
        ]

    def add(self, kind: str, **values: Any) -> None:
        number = len(self.events)
        self.events.append({"id": f"evt_{number}", "type": kind, "processed_at": NOW, **values})

    def call_next(self) -> None:
        """Adds the next tool call of the script, or the end of the session."""
        step = len(self.results())
        if step < len(self.script):
            name, arguments = self.script[step]
            permission = {"evaluated_permission": "allow"}
            self.add("agent.tool_use", name=name, input=arguments, **permission)
        else:
            self.add("session.status_terminated")

    def item(self) -> dict[str, Any]:
        return {
            "id": f"work_{self.session_id}",
            "type": "work",
            "environment_id": ENVIRONMENT,
            "created_at": NOW,
            "data": {"id": self.session_id, "type": "session"},
            "metadata": {},
            "state": self.state,
        }


class ControlPlane:
    """The server, and the sessions that it offers to workers."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.sessions: dict[str, Work] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def start_session(self, session_id: str, *script: tuple[str, dict[str, Any]]) -> Work:
        with self.lock:
            work = self.sessions[session_id] = Work(session_id, list(script))
            work.call_next()
            self.lock.notify_all()
            return work

    def wait(self, condition: Any, seconds: float = 30) -> None:
        with self.lock:
            assert self.lock.wait_for(condition, seconds), "the condition was not met"

    def poll(self) -> dict[str, Any] | None:
        with self.lock:
            for work in self.sessions.values():
                is_lapsed = work.state in ("starting", "active") and time.time() > work.lease_end
                if work.state == "queued" or is_lapsed:
                    work.state, work.last_heartbeat = "starting", ""
                    work.lease_end = time.time() + LEASE_SEC
                    work.claims += 1
                    self.lock.notify_all()
                    return work.item()
            self.lock.wait(BLOCK_SEC)
        return None

    def heartbeat(self, work: Work, expected: str) -> tuple[int, dict[str, Any]]:
        if (expected.replace("NO_HEARTBEAT", "")) != work.last_heartbeat:
            state = {"state": work.state, "last_heartbeat": work.last_heartbeat}
            details = {"current_state": state}
            return 412, {"type": "error", "error": {"type": "conflict", "details": details}}
        work.state = "stopping" if work.stop_requested else "active"
        work.last_heartbeat = f"{time.time()}"
        work.lease_end = time.time() + LEASE_SEC
        return 200, {
            "type": "work_heartbeat",
            "last_heartbeat": work.last_heartbeat,
            "lease_extended": True,
            "state": work.state,
            "ttl_seconds": LEASE_SEC,
        }

    def answer(self, method: str, path: str, query: Any, body: Any) -> tuple[int, Any]:
        """The response of all endpoints but the stream."""
        match method, path.strip("/").split("/")[1:]:
            case "GET", ["environments", _, "work", "poll"]:
                return 200, self.poll()
            case "POST", ["environments", _, "work", work_id, action]:
                work = self.sessions[work_id.removeprefix("work_")]
                if action == "heartbeat":
                    return self.heartbeat(work, query["expected_last_heartbeat"][0])
                if action == "stop":
                    work.state = "stopped"
                    work.forced_stops += bool((body or {}).get("force"))
                return 200, work.item()
            case "GET", ["sessions", session_id]:
                return 200, session(session_id)
            case "GET", ["sessions", session_id, "events"]:
                return 200, {"data": self.sessions[session_id].events, "next_page": None}
            case "POST", ["sessions", session_id, "events"]:
                work = self.sessions[session_id]
                for event in body["events"]:
                    kind = event.pop("type")
                    work.add(kind, **event)
                    work.call_next()
                return 200, {"data": []}
            case _:
                return 404, {"type": "error", "error": {"type": "not_found_error", "message": path}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, plane: ControlPlane, *args: Any) -> None:
        self.plane = plane
        super().__init__(*args)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:
        if self.path.split("?")[0].endswith("/events/stream"):
            self.stream()
        else:
            self.respond("GET", None)

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        self.respond("POST", json.loads(self.rfile.read(length) or b"null"))

    def respond(self, method: str, body: Any) -> None:
        url = urlsplit(self.path)
        assert self.headers["authorization"] == "Bearer environment-key", "the key of the worker"
        if url.path.endswith("/work/poll"):
            status, value = self.plane.answer(method, url.path, parse_qs(url.query), body)
        else:
            with self.plane.lock:
                status, value = self.plane.answer(method, url.path, parse_qs(url.query), body)
                self.plane.lock.notify_all()
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def stream(self) -> None:
        """Sends the events of a session that come from now on."""
        work = self.plane.sessions[self.path.split("/")[3]]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        sent = len(work.events)
        try:
            while not work.events or work.events[-1]["type"] != "session.status_terminated":
                self.send_events(work.events[sent:])
                sent = len(work.events)
                with self.plane.lock:
                    self.plane.lock.wait(BLOCK_SEC)
            self.send_events(work.events[sent:])
        except OSError:
            pass

    def send_events(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            self.wfile.write(data.encode())
        self.wfile.write(b": ping\n\n")
        self.wfile.flush()


def session(session_id: str) -> dict[str, Any]:
    agent = {
        "id": "agent_1",
        "name": "agent",
        "execution_identity": {"type": "service_account"},
        "mcp_servers": [],
        "model": {"id": "scripted"},
        "skills": [],
        "tools": [],
        "type": "agent",
        "version": 1,
    }
    return {
        "id": session_id,
        "type": "session",
        "agent": agent,
        "created_at": NOW,
        "updated_at": NOW,
        "environment_id": ENVIRONMENT,
        "metadata": {},
        "outcome_evaluations": [],
        "resources": [],
        "stats": {},
        "status": "running",
        "usage": {},
        "vault_ids": [],
    }
