"""What readers use: committed rows, published names, settings for other tools."""
