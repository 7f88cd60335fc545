"""Calls by what they are about. Only `Connection` and the stubs differ between both kinds of client."""
