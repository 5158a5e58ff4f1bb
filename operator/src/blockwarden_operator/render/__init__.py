"""Manifests of everything that a TenantPolicy owns: pure functions from values to dictionaries, one component per module."""
