-- Which key its caller has shown (a salted digest): a revoked key's answers are not those of the next key of
-- its name. Empty: none, or an earlier daemon's.
ALTER TABLE request ADD COLUMN holder BLOB NOT NULL DEFAULT x'';
