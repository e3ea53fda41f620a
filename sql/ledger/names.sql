-- name: first_name
-- The name that a pipeline first ran by; no row where it never had another.
SELECT r.was FROM sluice.renamed r WHERE r.pipeline = %(pipeline)s ORDER BY r.renamed_at LIMIT 1

-- name: given_up
-- The pipeline that had this name before, and has another now; no row where none has.
SELECT r.was, r.pipeline, r.renamed_at, r.renamed_by FROM sluice.renamed r
WHERE r.was = %(name)s AND r.pipeline <> %(name)s ORDER BY r.renamed_at DESC LIMIT 1

-- name: note
-- Notes the name that a pipeline has until now.
INSERT INTO sluice.renamed (was, pipeline, renamed_by) VALUES (%(old)s, %(old)s, %(who)s)

-- name: defer
-- Lets rows name a pipeline that has no such name until the transaction ends.
SET CONSTRAINTS ALL DEFERRED

-- name: rename_pipeline
-- Gives a pipeline's row another name.
UPDATE sluice.pipeline SET name = %(new)s WHERE name = %(old)s

-- name: tables
-- All tables of the ledger whose rows name their pipeline.
SELECT c.relname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = 'sluice'::regnamespace AND c.relkind = 'r' AND a.attname = 'pipeline' AND NOT a.attisdropped
ORDER BY c.relname

-- name: carry_over
-- Lets the rows of a table name a pipeline by its new name.
UPDATE sluice.{table} SET pipeline = %(new)s WHERE pipeline = %(old)s
