-- Workspaces that were created while the daemon runs.
CREATE TABLE workspace (
    name TEXT PRIMARY KEY NOT NULL,
    -- Name of its directory below that of all of them. Never used again.
    directory TEXT NOT NULL UNIQUE,
    -- Name of the principal that created it.
    owner TEXT NOT NULL,
    -- A JSON object of texts.
    labels TEXT NOT NULL,
    -- Whether its files are complete, and it is not being deleted.
    ready INTEGER NOT NULL,
    -- Milliseconds since the Unix epoch.
    created_ms INTEGER NOT NULL,
    last_used_ms INTEGER NOT NULL,
    -- None if it has no end.
    expires_ms INTEGER,
    -- None if it may be idle.
    idle_timeout_ms INTEGER
) STRICT;
