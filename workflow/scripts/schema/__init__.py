"""The schema of the config and the page of its keys, made from the recipes of the stages."""
