"""Stands for the kernel where Jupyter started one: asks the fork server for it, lives as long as it does.

Run as a file, with `python -I -S`, so that it costs milliseconds. Its arguments: Jupyter's connection file, the
fork server's socket, the kernel's folder there, the limits.
"""

import json
import os
import select
import socket
import sys

connection_file, server, folder, limits = sys.argv[1:]
with open(connection_file) as file:
    request = {"connection": json.load(file), "folder": folder, "limits": json.loads(limits)}
parent = os.getppid()
caller = socket.socket(socket.AF_UNIX)
caller.connect(server)
caller.sendall(json.dumps(request).encode() + b"\n")
while os.getppid() == parent:  # whoever wanted the kernel is still there
    if select.select([caller], [], [], 1.0)[0] and not caller.recv(1):
        break  # the kernel has ended
