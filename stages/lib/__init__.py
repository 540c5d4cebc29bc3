"""The library of stages and tools. Its rooms and their dependencies are in docs/architecture.md."""
