-- name: count_staged
-- How many rows of the winning tasks are staged.
SELECT count(*) FROM sluice_stage.{staging} WHERE _task = ANY(%(tasks)s)
