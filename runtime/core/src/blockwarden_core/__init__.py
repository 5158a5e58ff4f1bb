"""What the operator, the gateway and the engine plugin must agree on, and nothing else.

Everything here is pure: standard library and pydantic, no I/O, no clock, no randomness. A value that one part writes and
another reads (a salt token, a mounted document, a report on an internal port, a port number) is defined here once.
"""
