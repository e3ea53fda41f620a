-- How many records a batch read, where that is not told by its rows.

ALTER TABLE sluice.delivery ADD COLUMN records bigint CHECK (records >= 0);
COMMENT ON COLUMN sluice.delivery.records IS 'Where rows are not of this batch''s records alone, as of a transform that keeps state: how many records were read; null: rows_in';
