"""PostgreSQL's record: pipelines, leases, streams, deliveries, inputs, stops, pointers."""
