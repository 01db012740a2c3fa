"""Writes the descriptors that the package k8s-agent-sandbox carries: the published proto."""

import sys

from google.protobuf import descriptor_pb2, empty_pb2
from k8s_agent_sandbox.commands._process_stubs import process_pb2

files = [module.DESCRIPTOR.serialized_pb for module in (empty_pb2, process_pb2)]
descriptors = descriptor_pb2.FileDescriptorSet(
    file=[descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
)
with open(sys.argv[1], "wb") as output:
    output.write(descriptors.SerializeToString())
