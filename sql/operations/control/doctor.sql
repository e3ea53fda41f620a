-- name: closed_schemas
-- Those of the schemas in which this role may not create tables, or which it may not create.
SELECT name FROM unnest(%(schemas)s) AS wanted (name), to_regnamespace(quote_ident(name)) AS found (schema)
WHERE NOT coalesce(has_schema_privilege(found.schema, 'CREATE') AND has_schema_privilege(found.schema, 'USAGE'),
                   has_database_privilege(current_database(), 'CREATE'))
ORDER BY name
