"""The pages that are generated from the code: docs/protocol.md, docs/knobs.md, docs/troubleshooting.md."""
