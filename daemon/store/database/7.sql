-- The id that the model gave the call of a job; may be empty.
ALTER TABLE job ADD COLUMN given_id TEXT NOT NULL DEFAULT '';
