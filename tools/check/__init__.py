"""Facts about a config that are known before a stage starts, for a person: `tools.check FILE`."""
