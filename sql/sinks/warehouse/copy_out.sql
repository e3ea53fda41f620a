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
