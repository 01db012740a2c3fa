-- Id of the project quota of a created workspace. None without one.
ALTER TABLE workspace ADD COLUMN project_id INTEGER;
