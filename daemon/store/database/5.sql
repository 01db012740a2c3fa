-- Jobs of other vocabularies: which one `tool` is of. Empty: that of the contract.
ALTER TABLE job ADD COLUMN dialect TEXT NOT NULL DEFAULT '';
-- And calls of them that wait to be approved: what `tool` was called as. Empty: by its name.
ALTER TABLE approval ADD COLUMN said_as TEXT NOT NULL DEFAULT '';
