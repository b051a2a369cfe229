"""Generates docs/protocol.md, docs/protocol.schema.json, docs/knobs.md and docs/troubleshooting.md."""
