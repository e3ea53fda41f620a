"""Shows the state of pipelines, records decisions, asks runs to stop."""
