-- What is wrong with a malformed record.

ALTER TABLE sluice.quarantine ADD COLUMN detail text;
COMMENT ON COLUMN sluice.quarantine.detail IS 'What is wrong with a malformed record, in one sentence; of a file that can''t be read, why. Null: of any other row, and where the parser does not say';
