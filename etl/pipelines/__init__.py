"""The pipelines that Sluice ships, one file each; loaded by path, like users' own."""
