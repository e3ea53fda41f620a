"""Where rows come from: files, topics, live sources; malformed and late records told apart."""
