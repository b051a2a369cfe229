"""Verification of an exported model: another program reads it, and must compute what the checkpoint computes.

    reference (torch) ─┐
                       ├─ compare → verification.json, README.md, event `verification`
    program (child) ───┘

The reference is computed first and freed. The program runs in a child process: an abort in its C++ code must not end
the export.
"""
