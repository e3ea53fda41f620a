-- What Sluice's role needs: three schemas. Run it once, as a superuser; a sink in another schema needs the same there.
GRANT CONNECT, TEMPORARY ON DATABASE {database} TO {role};
CREATE SCHEMA IF NOT EXISTS sluice AUTHORIZATION {role};
CREATE SCHEMA IF NOT EXISTS sluice_stage AUTHORIZATION {role};
CREATE SCHEMA IF NOT EXISTS warehouse AUTHORIZATION {role};
GRANT USAGE, CREATE ON SCHEMA sluice, sluice_stage, warehouse TO {role};
