"""The lake: Parquet objects and Iceberg metadata on S3."""
