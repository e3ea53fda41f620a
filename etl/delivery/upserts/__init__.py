"""An upsert sink in which a replay takes away rows: the change log of its keys, and what comes back into force."""
