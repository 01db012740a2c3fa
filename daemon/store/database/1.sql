-- Facts about the file. `salt` prevents guessing requests from their fingerprints.
CREATE TABLE fact (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
INSERT INTO fact VALUES ('salt', randomblob(32));

-- Calls with a request id, inserted when their work begins.
CREATE TABLE request (
    principal TEXT NOT NULL,
    workspace TEXT NOT NULL,
    id TEXT NOT NULL,
    method TEXT NOT NULL,
    session TEXT NOT NULL,
    -- SHA-256 of the salt and the request message.
    fingerprint BLOB NOT NULL,
    -- Generation of the daemon that did the work (a ULID).
    life TEXT NOT NULL,
    -- Step of the session; none if the call is not recorded as one.
    step INTEGER,
    -- Milliseconds since the Unix epoch.
    begun_ms INTEGER NOT NULL,
    -- None while the work is in progress, or if the daemon died during it.
    answer BLOB,
    answer_bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (principal, workspace, id)
) STRICT;
CREATE INDEX request_by_age ON request (begun_ms, answer_bytes);
