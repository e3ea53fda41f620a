"""What a reader may decide on the pages, and how a decision is carried out."""
