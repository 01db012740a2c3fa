-- Fingerprint of the caller's API key (a salted digest). It keeps the responses of a revoked key from the
-- next key of that name. Empty for callers without a key and for rows of earlier versions.
ALTER TABLE request ADD COLUMN holder BLOB NOT NULL DEFAULT x'';
