"""Several server processes on one port, for more than one core.

    parent   owns the port, the embedded store and the processes; knows nothing of gRPC
    child    one process: a server like any other, on the shared port and on one of its own
    orders   what the two tell each other over pipes

All processes listen on the shared port (SO_REUSEPORT); the kernel deals connections out. Each has a port of
its own as well, which its streams name, so that workers reach every process whatever the dealing was.
"""
