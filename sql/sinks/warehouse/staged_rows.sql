-- name: open_packed
-- The packed rows of the winning tasks, to be read a few parts at a time.
DECLARE packed NO SCROLL CURSOR FOR
SELECT rows, size, packed FROM sluice_stage.{staging} WHERE held = %(held)s AND _task = ANY(%(tasks)s)

-- name: next_packed
-- The next of them; none at the end.
FETCH 8 FROM packed

-- name: close_packed
-- Ends the reading.
CLOSE packed

-- name: count_staged
-- How many rows of the winning tasks are staged.
SELECT count(*) FROM sluice_stage.{staging} WHERE _task = ANY(%(tasks)s)

-- name: count_keys
-- How many rows of the winning tasks are staged, and of how many keys.
SELECT coalesce(sum(n), 0)::bigint, count(*) FROM (
    SELECT count(*) AS n FROM sluice_stage.{staging} WHERE _task = ANY(%(tasks)s) GROUP BY {keys}) one
