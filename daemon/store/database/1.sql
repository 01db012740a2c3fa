-- What is true of the whole file. `salt` makes fingerprints of requests useless to who wants to guess them.
CREATE TABLE fact (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
INSERT INTO fact VALUES ('salt', randomblob(32));

-- Calls with a request id, from the moment at which their work begins.
CREATE TABLE request (
    principal TEXT NOT NULL,
    workspace TEXT NOT NULL,
    id TEXT NOT NULL,
    method TEXT NOT NULL,
    session TEXT NOT NULL,
    -- SHA-256 of the salt and the request message.
    fingerprint BLOB NOT NULL,
    -- Which life of the daemon did the work (a ULID).
    life TEXT NOT NULL,
    -- Step of the session; none where the call is not recorded as one.
    step INTEGER,
    -- Milliseconds since 1970.
    begun_ms INTEGER NOT NULL,
    -- None while the work goes on, or if the daemon died meanwhile.
    answer BLOB,
    answer_bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (principal, workspace, id)
) STRICT;
CREATE INDEX request_by_age ON request (begun_ms, answer_bytes);
