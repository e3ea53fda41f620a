-- name: one_snapshot
-- Everything that follows in the transaction is read as of one moment, however long it takes.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- name: keep_table
-- Others may read and write the table, and not change it.
LOCK TABLE {target} IN ACCESS SHARE MODE

-- name: no_time_limits
-- A recount takes as long as the table is large.
SET LOCAL statement_timeout = 0; SET LOCAL transaction_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0

-- name: deliveries
-- The live deliveries of a pipeline in the order of their commits.
SELECT d.delivery_id, d.stream_id::text, d.batch_id, d.kind, d.commit_seq, d.delivered, d.quarantined, d.checksum,
       d.quarantine_checksum
FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s AND d.live ORDER BY d.commit_seq

-- name: replaced
-- The deliveries of a pipeline whose place another took, and which.
SELECT d.delivery_id, d.superseded_by FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s AND NOT d.live

-- name: newest_commit
-- The number of the pipeline's newest commit; no row before its first run.
SELECT p.commit_seq FROM sluice.pipeline p WHERE p.name = %(pipeline)s

-- name: delivered_between
-- The live deliveries of a pipeline after one of its commits, up to another, in their order.
SELECT d.delivery_id FROM sluice.delivery d
WHERE d.pipeline = %(pipeline)s AND d.live AND d.commit_seq > %(after)s AND d.commit_seq <= %(to)s ORDER BY d.commit_seq

-- name: replaced_between
-- The deliveries up to one of the pipeline's commits whose place was taken after it, up to another commit.
SELECT r.delivery_id FROM sluice.replaced r JOIN sluice.delivery d USING (delivery_id)
WHERE r.pipeline = %(pipeline)s AND d.commit_seq <= %(after)s
  AND r.superseded_seq > %(after)s AND r.superseded_seq <= %(to)s ORDER BY d.commit_seq

-- name: delivered_files
-- The committed files of a pipeline's live deliveries.
SELECT f.delivery_id, f.stream_id::text, f.batch_id, f.kind, f.path, f.rows, f.bytes
FROM sluice.delivered_file f JOIN sluice.delivery d USING (delivery_id)
WHERE f.pipeline = %(pipeline)s ORDER BY d.commit_seq, f.path

-- name: attempts
-- What is known of these attempts, of any pipeline; `since`: committed after commit `seen`.
SELECT a.delivery_id, a.pipeline, a.stream_id::text, a.batch_id, left(a.lease_token::text, 8) AS run,
       CASE WHEN d.commit_seq > %(seen)s THEN 'since'
            WHEN a.adopted AND a.outcome IS DISTINCT FROM 'delivered' THEN 'lost'
            ELSE coalesce(a.outcome, 'open') END AS state
FROM sluice.attempt a LEFT JOIN sluice.delivery d USING (delivery_id)
WHERE a.delivery_id = ANY(%(deliveries)s)

-- name: copy_table
-- Every row of the pipeline's table, each value in a form that loses nothing.
COPY (SELECT {columns} FROM {target}) TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')

-- name: copy_quarantine
-- Every row of the pipeline that a live delivery held, released and discarded ones included, as on the lake.
COPY (SELECT {columns} FROM sluice.quarantine WHERE pipeline = {pipeline} AND status <> 'superseded') TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')

-- name: exact_plain
-- A value whose own text is exact.
{column}

-- name: exact_binary
-- Bytes in hexadecimal.
encode({column}, 'hex')

-- name: exact_decimal
-- A number; NaN, which no Arrow decimal can be, is told by `beyond`.
nullif({column}, 'NaN')

-- name: exact_date
-- Days since 1970.
CASE WHEN isfinite({column}) THEN {column} - DATE '1970-01-01' END

-- name: exact_timestamp
-- Microseconds since 1970. Where PostgreSQL's own epoch and ours are more than 64 bits apart, extract() divides
-- and rounds: there the whole seconds and the rest are taken one by one.
CASE WHEN {column} < '200000-01-01 00:00:00+00' AND isfinite({column})
     THEN (extract(epoch FROM {column}) * 1000000)::bigint
     WHEN {column} <= '294247-01-10 04:00:54.775807+00' AND isfinite({column})
     THEN round(extract(epoch FROM date_trunc('second', {column})))::bigint * 1000000
          + extract(microseconds FROM {column})::bigint % 1000000 END

-- name: beyond_decimal
-- Whether the value has no place in the Arrow type.
{column} = 'NaN'

-- name: beyond_date
-- Whether the value has no place in the Arrow type.
NOT isfinite({column})

-- name: beyond_timestamp
-- Whether the value has no place in the Arrow type.
NOT (isfinite({column}) AND {column} <= '294247-01-10 04:00:54.775807+00')
