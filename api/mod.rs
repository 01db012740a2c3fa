//! The gRPC contract: messages, clients and servers generated from `proto/`, their descriptors, the
//! reasons of errors, and the conversion between JSON and `google.protobuf.Struct`.

#[cfg(any(feature = "client", feature = "daemon"))]
pub mod json_struct;
pub mod reason;

pub use self::generated::{process_v1, v1};

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
mod generated {
    /// Types, clients and servers of the package `jig.v1`.
    pub mod v1 {
        tonic::include_proto!("jig.v1");
    }

    /// Types, clients and servers of the process service of the Kubernetes agent-sandbox runtime.
    pub mod process_v1 {
        tonic::include_proto!("process.v1");
    }
}

/// Descriptors of `process.v1`, as [`FILE_DESCRIPTOR_SET`].
pub const PROCESS_V1_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/process.v1.bin"));

/// Descriptors of `jig.v1` and its imports, with comments and options.
///
/// An encoded `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/jig.v1.bin"));
