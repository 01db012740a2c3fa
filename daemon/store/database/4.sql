-- A call is kept from when it ended: one that takes long could be forgotten while it goes on, or be answered and forgotten at once.
-- None while the work goes on, or until it is found that the daemon died meanwhile. When those before this version ended is not known.
ALTER TABLE request ADD COLUMN ended_ms INTEGER;
UPDATE request SET ended_ms = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE answer IS NOT NULL;
-- What is kept is shared out among those who call.
DROP INDEX request_by_age;
CREATE INDEX request_by_holder ON request (principal, ended_ms, answer_bytes);
DROP INDEX job_by_end;
CREATE INDEX job_by_holder ON job (principal, ended_ms, result_bytes) WHERE ended_ms IS NOT NULL;
