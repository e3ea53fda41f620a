"""What is known of a pipeline's sources before they are opened, by their kind: light to import."""
