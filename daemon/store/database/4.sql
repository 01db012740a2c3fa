-- Retention counts from the end of a call. Counted from its start, a long call could be removed while
-- it is in progress, or right after it is answered.
-- None while the work is in progress, or until a daemon finds that the last one died during it. For rows
-- of earlier versions, the time of the end is unknown.
ALTER TABLE request ADD COLUMN ended_ms INTEGER;
UPDATE request SET ended_ms = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE answer IS NOT NULL;
-- Retention is fair among principals.
DROP INDEX request_by_age;
CREATE INDEX request_by_holder ON request (principal, ended_ms, answer_bytes);
DROP INDEX job_by_end;
CREATE INDEX job_by_holder ON job (principal, ended_ms, result_bytes) WHERE ended_ms IS NOT NULL;
