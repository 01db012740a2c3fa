"""Checks the health of the daemon, and calls it, with gRPC's C core over TLS and a client certificate.

Usage: health.py ADDRESS CA CERTIFICATE KEY
"""
import sys

import grpc


def read(path):
    with open(path, "rb") as file:
        return file.read()


address, ca, certificate, key = sys.argv[1:]
credentials = grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
with grpc.secure_channel(address, credentials) as channel:
    # An empty message asks for the health of the whole daemon. Field 1 of the response is the status.
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    print("SERVING" if check(b"", timeout=30) == b"\x08\x01" else "NOT_SERVING")
    info = channel.unary_unary("/jig.v1.DaemonService/GetInfo")
    print("ADMITTED" if info(b"", timeout=30) else "EMPTY")
