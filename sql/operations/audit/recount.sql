-- name: copy_table
-- Every row of the pipeline's table, each value in a form that loses nothing.
COPY (SELECT {columns} FROM {target}) TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')

-- name: beyond_decimal
-- Whether the value has no place in the Arrow type.
{column} = 'NaN'

-- name: beyond_date
-- Whether the value has no place in the Arrow type.
NOT isfinite({column})

-- name: beyond_timestamp
-- Whether the value has no place in the Arrow type.
NOT (isfinite({column}) AND {column} <= '294247-01-10 04:00:54.775807+00')
