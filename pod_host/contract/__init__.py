"""Harness API v5 as data: frames, bodies, error codes, the request hash, transcript edits. No I/O."""
