-- name: copy_quarantine
-- Every row of the pipeline that a live delivery held, released and discarded ones included, as on the lake.
COPY (SELECT {columns} FROM sluice.quarantine WHERE pipeline = {pipeline} AND status <> 'superseded') TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')
