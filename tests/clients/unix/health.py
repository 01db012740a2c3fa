"""Checks the health of a daemon on a Unix socket, 100 times on one connection, without an option."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

with grpc.insecure_channel("unix:" + sys.argv[1]) as channel:
    health = health_pb2_grpc.HealthStub(channel)
    for number in range(100):
        # Adds entries to the HPACK dynamic table after that of the authority.
        metadata = [("x-number", str(number)), ("x-long", "v" * number)]
        response = health.Check(health_pb2.HealthCheckRequest(), timeout=20, metadata=metadata)
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
