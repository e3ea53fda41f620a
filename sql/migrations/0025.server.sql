-- Which server and database gave out the last delivery number: after a restore it is another one.

CREATE TABLE sluice.number_server (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    server  text NOT NULL
);
COMMENT ON TABLE sluice.number_server IS 'Where delivery numbers were last given out; one row';
COMMENT ON COLUMN sluice.number_server.one IS 'Always true';
COMMENT ON COLUMN sluice.number_server.server IS 'Start of the server, oid of the database and of sluice.attempt: each restore makes one of them another';
INSERT INTO sluice.number_server (server) VALUES ('');

CREATE VIEW sluice.this_server AS
SELECT format('%s %s %s', extract(epoch FROM pg_postmaster_start_time()),
              (SELECT oid FROM pg_database WHERE datname = current_database()),
              'sluice.attempt'::regclass::oid) AS server;
COMMENT ON VIEW sluice.this_server IS 'The server and database that this is';
COMMENT ON COLUMN sluice.this_server.server IS 'As in sluice.number_server';
