"""Options that need a certain GPU: products in float8, and CUDA graphs; the conditions under which they hold."""
