"""blockwarden_gateway."""
