-- The id that the model gave the call that a job makes. Empty: none.
ALTER TABLE job ADD COLUMN given_id TEXT NOT NULL DEFAULT '';
