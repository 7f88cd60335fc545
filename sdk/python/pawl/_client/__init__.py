"""The calls of a client, in one text for both kinds of client.

`aio` is written by hand; `sync` is made of it by `make gen`, which leaves out `async` and `await`. All that
differs between the two is in their connections, `aio_connection` and `sync_connection`.

A new call is a method in `aio`, then `make gen`: both clients have it.
"""
