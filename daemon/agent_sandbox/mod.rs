//! The API of the Kubernetes agent-sandbox runtime (KEP-539.2), on listeners of its own: the gRPC
//! service `process.v1.ProcessService`, and files and probes over REST.
//!
//! Like the other ways in, both translate their requests into calls of the contract in the name of
//! the caller. So limits, policy, isolation and records are those of every call.
//!
//! | request | calls |
//! |---|---|
//! | `process.v1.ProcessService/Start`, `Execute` | `ProcessService.Start` |
//! | `WriteStdin`, `SendSignal`, `ResizeTTY` | `ProcessService`, for processes of the caller |
//! | `GET`, `HEAD /v1/files/PATH` | `TransferService.Download`, `ToolService.ListDirectory` |
//! | `PUT`, `DELETE /v1/files/PATH` | `TransferService.Upload`, `ToolService.DeletePath` |
//! | `GET /v1/health` | the health service |
//! | `GET /v1/metadata`, `/openapi.json` | none |

mod api_error;
mod byte_range;
mod caller_name;
mod downloads;
mod file_body;
mod files;
mod grpc_api;
mod openapi;
mod preconditions;
mod probes;
mod process_events;
mod process_ids;
mod process_service;
mod rest_api;
mod rest_context;

use std::{collections::BTreeMap, sync::Arc};

use http::Response;
use tonic::body::Body;

use self::api_error::ApiError;
use super::{
    error::Error,
    http::{CallerCheck, HttpService},
    queue::ByteBudget,
};

/// The services of both listeners.
#[derive(Debug)]
pub(crate) struct AgentSandbox {
    pub(crate) grpc: HttpService,
    pub(crate) rest: HttpService,
}

impl AgentSandbox {
    /// `grpc` has the gRPC services with their layers. `check_caller` rejects a caller before the
    /// body of a request is read. `buffered` limits the memory of bodies. `metadata` is what `/v1/metadata` returns.
    pub(crate) fn new(
        grpc: HttpService,
        check_caller: CallerCheck,
        buffered: Arc<ByteBudget>,
        metadata: BTreeMap<String, String>,
    ) -> Self {
        Self {
            grpc: grpc_api::service(grpc.clone(), Arc::clone(&check_caller), Arc::clone(&buffered)),
            rest: rest_api::service(grpc, check_caller, buffered, metadata),
        }
    }
}

/// The response to a request that does not reach the services.
pub(crate) fn rejection(error: &Error) -> Response<Body> {
    ApiError::from(error).into_http()
}
