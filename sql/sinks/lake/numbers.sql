-- name: this_server
-- The server and database that this is.
SELECT server FROM sluice.this_server

-- name: same_server
-- Whether the last number was given out here, and whether the pipeline was compared with the lake here.
SELECT k.server = t.server,
       EXISTS (SELECT FROM sluice.compared c WHERE c.pipeline = %(pipeline)s AND c.server = t.server)
FROM sluice.number_server k, sluice.this_server t

-- name: keep_compared
-- Notes where the pipeline was compared with the lake; changes no row where this is not the server that was compared.
INSERT INTO sluice.compared (pipeline, server)
SELECT %(pipeline)s, t.server FROM sluice.this_server t WHERE t.server = %(server)s
ON CONFLICT (pipeline) DO UPDATE SET server = excluded.server

-- name: lock_server
-- Lets one at a time skip the numbers that are not free here.
SELECT FROM sluice.number_server FOR UPDATE

-- name: keep_server
-- Notes that numbers are given out here; changes no row where this is not the server that was asked for them.
UPDATE sluice.number_server SET server = t.server FROM sluice.this_server t WHERE t.server = %(server)s
