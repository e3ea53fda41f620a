"""One batch: staged, judged, and committed into both sinks or neither; replays and releases as corrections."""
