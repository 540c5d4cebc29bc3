"""The library of stages and tools. Its packages and their dependencies are in docs/architecture.md."""
