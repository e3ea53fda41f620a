-- name: count_staged
-- How many rows of the winning tasks are staged.
SELECT count(*) FROM sluice_stage.{staging} WHERE _task = ANY(%(tasks)s)

-- name: count_keys
-- How many rows of the winning tasks are staged, and of how many keys.
SELECT coalesce(sum(n), 0)::bigint, count(*) FROM (
    SELECT count(*) AS n FROM sluice_stage.{staging} WHERE _task = ANY(%(tasks)s) GROUP BY {keys}) one
