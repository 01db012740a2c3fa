-- Approvals: pending and ended ones.
CREATE TABLE approval (
    -- A ULID.
    id TEXT PRIMARY KEY,
    workspace TEXT NOT NULL,
    session TEXT NOT NULL,
    principal TEXT NOT NULL,
    call_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    -- JSON: names and values to show to people, without values that may be secret.
    parameters TEXT NOT NULL,
    -- JSON: paths.
    files TEXT NOT NULL,
    -- The rule or risk level that requires the approval.
    asked_by TEXT NOT NULL,
    -- Milliseconds since the Unix epoch, like all times here.
    asked_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    -- PENDING, ALLOWED, DENIED, EXPIRED, WITHDRAWN or LOST.
    state TEXT NOT NULL,
    decided_ms INTEGER,
    decided_by TEXT NOT NULL DEFAULT '',
    comment TEXT NOT NULL DEFAULT '',
    -- The rule that was created with the decision.
    rule_id TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX approval_by_workspace ON approval (workspace, id);
CREATE INDEX approval_pending ON approval (id) WHERE state = 'PENDING';
CREATE INDEX approval_by_age ON approval (decided_ms);

-- Policy rules created at runtime.
CREATE TABLE rule (
    -- A ULID.
    id TEXT PRIMARY KEY,
    workspace TEXT NOT NULL,
    name TEXT NOT NULL,
    tool TEXT NOT NULL,
    -- None if it matches any parameters.
    pattern TEXT,
    -- ALLOW, ASK or DENY.
    action TEXT NOT NULL,
    -- None if it does not expire.
    expires_ms INTEGER,
    enabled INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    -- The approval that it was created with.
    approval_id TEXT
) STRICT, WITHOUT ROWID;
