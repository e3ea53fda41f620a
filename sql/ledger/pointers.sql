-- name: pointer
-- Where an Iceberg table's current metadata is.
SELECT metadata_location FROM sluice.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(table)s

-- name: create_pointer
-- The first pointer of a table; changes nothing when there is one.
INSERT INTO sluice.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
VALUES (%(catalog)s, %(namespace)s, %(table)s, %(location)s, 'TABLE')
ON CONFLICT DO NOTHING

-- name: create_namespace
-- Makes the namespace known to pyiceberg.
INSERT INTO sluice.iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)
VALUES (%(catalog)s, %(namespace)s, 'exists', 'true')
ON CONFLICT DO NOTHING

-- name: swap_pointer
-- Publishes new metadata, under every name that the table has; returns no row when the pointer is no longer at its base.
WITH swapped AS (
    UPDATE sluice.iceberg_tables SET metadata_location = %(location)s, previous_metadata_location = %(base)s
    WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(table)s
      AND metadata_location = %(base)s
    RETURNING catalog_name
), followed AS (
    UPDATE sluice.iceberg_tables t
    SET metadata_location = %(location)s, previous_metadata_location = t.metadata_location
    FROM swapped s, sluice.pipeline l JOIN sluice.published p ON p.pipeline = l.name
    WHERE (l.table_schema, l.table_name) = (%(namespace)s, %(table)s) AND t.catalog_name = s.catalog_name
      AND (t.table_namespace, t.table_name) = (p.schema_name, p.name)
)
SELECT FROM swapped
