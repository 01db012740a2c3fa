-- Jobs, from their acknowledgement on. Parameters of queued jobs are in files of their own.
CREATE TABLE job (
    -- A ULID.
    id TEXT PRIMARY KEY,
    workspace TEXT NOT NULL,
    session TEXT NOT NULL,
    principal TEXT NOT NULL,
    -- The request id of the submission, if any.
    request TEXT,
    tool TEXT NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    -- queued, running, succeeded, failed, cancelled, lost.
    state TEXT NOT NULL,
    -- The trace that it is part of (W3C traceparent); may be empty.
    trace TEXT NOT NULL,
    -- Milliseconds since the Unix epoch.
    submitted_ms INTEGER NOT NULL,
    started_ms INTEGER,
    ended_ms INTEGER,
    -- Step of the session, once it has started.
    step INTEGER,
    -- The result, as an encoded message.
    result BLOB,
    result_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX job_by_workspace ON job (workspace, id);
CREATE INDEX job_by_request ON job (request, workspace, principal) WHERE request IS NOT NULL;
CREATE INDEX job_by_state ON job (state);
CREATE INDEX job_by_end ON job (ended_ms, result_bytes) WHERE ended_ms IS NOT NULL;
