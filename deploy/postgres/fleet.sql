-- The queues of a jig fleet in PostgreSQL 12 or later (docs/operate/fleet.md).
--
-- The operator runs this once, as the owner of the table. Daemons and submitters get their rights at
-- the end, and need none to create anything:
--
--   psql --set=ON_ERROR_STOP=1 --set=daemons=jigd --set=submitters=ci --file=fleet.sql DATABASE
--
-- Both are roles that exist. Repeating it creates nothing again, and locks no table. Run a newer version
-- before daemons of that version start: it adds columns.

BEGIN;

SET LOCAL lock_timeout = '2s';

-- In another encoding, one row that is no valid UTF-8 would block its queue.
DO $$
BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'the encoding of the database is %, and a fleet needs UTF8', current_setting('server_encoding')
            USING HINT = 'CREATE DATABASE jig ENCODING ''UTF8'' TEMPLATE template0';
    END IF;
END
$$;

-- A job of the past would be before all others.
CREATE OR REPLACE FUNCTION jig_jobs_prepare() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.id := 'fleet-'
        || left(encode(sha256(convert_to(NEW.queue || '/' || NEW.request_id, 'UTF8')), 'hex'), 32);
    NEW.not_before := greatest(NEW.not_before, now());
    NEW.any_workspace := NEW.workspace = '';
    RETURN NEW;
END
$$;

-- Wakes the daemons that wait for a job of the queue, and those that wait for its end.
CREATE OR REPLACE FUNCTION jig_jobs_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('jig_jobs', NEW.state || ' ' || NEW.id || ' ' || NEW.queue);
    RETURN NULL;
END
$$;

-- Daemons cannot renew their leases while the table is locked, so an existing one is left alone.
SELECT to_regclass('jig_jobs') IS NULL AS is_new \gset
\if :is_new

CREATE TABLE jig_jobs (
    -- 'fleet-' and 32 digits of the SHA-256 of queue/request_id. The trigger sets it.
    id text PRIMARY KEY,

    -- What submitters give. Two rows cannot have the same queue and request id.
    queue text NOT NULL CHECK (queue ~ '^[a-z0-9_:-]{1,80}$'),
    -- Empty: the first workspace of the daemon that runs the job.
    workspace text NOT NULL DEFAULT '' CHECK (char_length(workspace) <= 80),
    request_id text NOT NULL CHECK (char_length(request_id) BETWEEN 1 AND 120),
    session text NOT NULL DEFAULT '' CHECK (char_length(session) <= 64),
    traceparent text NOT NULL DEFAULT '' CHECK (char_length(traceparent) <= 64),
    -- An encoded jig.v1.SubmitJobRequest.
    request bytea NOT NULL CHECK (octet_length(request) <= 1048576),
    -- Whether another daemon runs the job again if its daemon dies.
    retry_if_lost boolean NOT NULL DEFAULT false,
    -- No daemon claims the job before. The trigger replaces a time in the past.
    not_before timestamptz NOT NULL DEFAULT now() CHECK (isfinite(not_before)),

    -- Whether submitters gave no workspace. The trigger sets it. If the job is given back, `workspace`
    -- is empty again.
    any_workspace boolean NOT NULL DEFAULT false,

    -- What daemons store.
    state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'claimed', 'ended')),
    claimed_by text,
    -- The start of that daemon: its claims are its own after a restart with the same database.
    claimed_start text NOT NULL DEFAULT '',
    -- When the daemon that has claimed the job counts as dead. It renews the lease before.
    lease_until timestamptz,
    -- Approval at the daemon that the job waits for before it begins.
    approval_id text NOT NULL DEFAULT '',
    -- Whether its daemon is to cancel the job.
    cancel_requested boolean NOT NULL DEFAULT false,
    -- Claims that began the job.
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- succeeded, failed, cancelled or lost.
    outcome text,
    -- An encoded jig.v1.Job with its result.
    result bytea,
    submitted_at timestamptz NOT NULL DEFAULT now(),
    claimed_at timestamptz,
    ended_at timestamptz,

    CHECK ((state = 'claimed') = (lease_until IS NOT NULL)),
    CHECK (state <> 'claimed' OR claimed_by IS NOT NULL),
    CHECK ((state = 'ended') = (result IS NOT NULL))
);

CREATE INDEX jig_jobs_due ON jig_jobs (queue, workspace, not_before, id) WHERE state = 'queued';
CREATE INDEX jig_jobs_claimed ON jig_jobs (queue, lease_until) WHERE state = 'claimed';
CREATE INDEX jig_jobs_ended ON jig_jobs (ended_at) WHERE state = 'ended';

CREATE TRIGGER jig_jobs_prepare BEFORE INSERT ON jig_jobs
    FOR EACH ROW EXECUTE FUNCTION jig_jobs_prepare();

CREATE TRIGGER jig_jobs_notify AFTER INSERT OR UPDATE OF state ON jig_jobs
    FOR EACH ROW WHEN (NEW.state <> 'claimed') EXECUTE FUNCTION jig_jobs_notify();

\endif

-- What a table of an older version lacks.
SELECT count(*) < 4 AS is_old FROM pg_attribute
    WHERE attrelid = to_regclass('jig_jobs')
        AND attname IN ('claimed_start', 'approval_id', 'any_workspace', 'cancel_requested') \gset
\if :is_old
ALTER TABLE jig_jobs
    ADD COLUMN IF NOT EXISTS claimed_start text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS approval_id text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS any_workspace boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS cancel_requested boolean NOT NULL DEFAULT false;
\endif

SELECT to_regclass('jig_jobs_due') IS NULL AS is_old \gset
\if :is_old
CREATE INDEX jig_jobs_due ON jig_jobs (queue, workspace, not_before, id) WHERE state = 'queued';
DROP INDEX IF EXISTS jig_jobs_queued;
\endif

-- A role that can change all columns can give jobs results. Submitters cannot.
GRANT SELECT, INSERT, UPDATE, DELETE ON jig_jobs TO :"daemons";
GRANT SELECT ON jig_jobs TO :"submitters";
GRANT INSERT (queue, workspace, request_id, session, traceparent, request, retry_if_lost, not_before)
    ON jig_jobs TO :"submitters";

COMMIT;
