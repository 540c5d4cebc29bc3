"""What several stages share: small modules with one purpose each. No module here imports a stage."""
