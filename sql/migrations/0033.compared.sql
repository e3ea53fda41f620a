-- On which server and database each pipeline's deliveries were compared with what the lake says was delivered last.

CREATE TABLE sluice.compared (
    pipeline  text PRIMARY KEY REFERENCES sluice.pipeline (name),
    server    text NOT NULL
);
COMMENT ON TABLE sluice.compared IS 'Where the newest delivery that the lake names was last looked for; a row for each pipeline';
COMMENT ON COLUMN sluice.compared.pipeline IS 'Its name';
COMMENT ON COLUMN sluice.compared.server IS 'As in sluice.number_server';
