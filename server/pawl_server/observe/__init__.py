"""What an operator can see of a running server: its metrics, in Prometheus' format, on an address of its own.

Nothing is counted here. Every layer counts what it does in plain numbers; `collect` reads them when somebody
asks, `waiting` reads the store, `exposition` writes the page and `endpoint` serves it.
"""
