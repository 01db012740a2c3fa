-- The dialect of a job's tool; empty for tools of the contract.
ALTER TABLE job ADD COLUMN dialect TEXT NOT NULL DEFAULT '';
-- The name of an approval's tool in the caller's dialect; empty if the call used the tool's own name.
ALTER TABLE approval ADD COLUMN said_as TEXT NOT NULL DEFAULT '';
