-- Bounds on the files of a created workspace. None: no bound.
ALTER TABLE workspace ADD COLUMN max_bytes INTEGER;
ALTER TABLE workspace ADD COLUMN max_files INTEGER;
