//! Client for the standard health check, `grpc.health.v1.Health/Check`.
//!
//! The two messages are written out here. tonic-health has this client, but comes with a server and
//! is a dependency of the daemon only: twenty lines against a crate for every user of the client.

use tonic::{
    Code, Request, Response, Status, client::Grpc, codegen::http::uri::PathAndQuery,
    transport::Channel,
};
use tonic_prost::ProstCodec;

/// Health of the daemon or of one of its services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    /// Not known yet.
    Unknown = 0,
    /// The service accepts calls.
    Serving = 1,
    /// The daemon starts, drains, or cannot provide the required isolation level.
    NotServing = 2,
    /// There is no such service. Only `Watch` returns it; `Check` fails with NOT_FOUND.
    ServiceUnknown = 3,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

impl ServingStatus {
    /// Returns the name in the gRPC contract, for example `NOT_SERVING`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Serving => "SERVING",
            Self::NotServing => "NOT_SERVING",
            Self::ServiceUnknown => "SERVICE_UNKNOWN",
        }
    }
}

pub(super) async fn check(
    channel: Channel,
    request: Request<HealthCheckRequest>,
) -> Result<Response<ServingStatus>, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;

    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let response: Response<HealthCheckResponse> =
        grpc.unary(request, path, ProstCodec::default()).await?;
    Ok(response.map(|response| response.status()))
}
