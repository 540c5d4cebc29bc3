"""What can be known of a config before a stage starts, for a person: `tools.check FILE`."""
