-- What Sluice's role needs: three schemas of its own. Run it once, as the owner of the database.
GRANT CONNECT, TEMPORARY ON DATABASE {database} TO {role};
CREATE SCHEMA IF NOT EXISTS sluice AUTHORIZATION {role};
CREATE SCHEMA IF NOT EXISTS sluice_stage AUTHORIZATION {role};
CREATE SCHEMA IF NOT EXISTS warehouse AUTHORIZATION {role};
