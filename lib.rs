//! jig: a daemon that serves sandboxed tool calls to remote agents over gRPC, and its client.

/// The contract: types, clients and servers generated from `proto/`, and the descriptors.
pub mod api {
    /// `jig.v1`.
    #[allow(
        clippy::all,
        clippy::allow_attributes_without_reason,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::wildcard_enum_match_arm,
        missing_debug_implementations,
        unreachable_pub,
        reason = "generated"
    )]
    pub mod v1 {
        tonic::include_proto!("jig.v1");
    }

    /// The descriptors of `jig.v1` and what it imports, with comments and options, as an encoded `google.protobuf.FileDescriptorSet`.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/jig.v1.bin"));
}

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "daemon")]
pub mod daemon;
