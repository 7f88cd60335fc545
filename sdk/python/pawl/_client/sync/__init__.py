# Generated from ../aio/__init__.py by tools/gen.py; do not edit.
"""Calls by what they are about. Only `Connection` and the stubs differ between both kinds of client."""
