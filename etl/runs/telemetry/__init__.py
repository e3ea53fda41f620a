"""Tells other systems what a run does: OpenLineage of each delivery, OpenTelemetry of where its time goes."""
