"""Models: architectures, key tables, attention, loss, initialization, generation, parameter and FLOP counts."""
