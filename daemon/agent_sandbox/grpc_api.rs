//! The gRPC listener: `process.v1.ProcessService`, health and reflection.

use std::{convert::Infallible, sync::Arc};

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tonic::{Status, body::Body, service::Routes};
use tonic_reflection::server::Builder;
use tower::{ServiceExt as _, service_fn};

use super::{api_error::ApiError, caller_name::CallerName, process_service::AgentProcessHandler};
use crate::{
    api::{self, process_v1::process_service_server::ProcessServiceServer},
    daemon::{
        grpc::status::to_status,
        http::{BodyBuffer, CallerCheck, HttpService, is_native_grpc},
        queue::{ByteBudget, PrincipalName},
    },
};

/// Largest request: that of gRPC by default.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Largest request of reflection: names of services, files and types.
const MAX_REFLECTION_BYTES: usize = 64 << 10;
/// The prefix of a message of gRPC.
const PREFIX_BYTES: usize = 5;
/// Methods whose requests are single messages.
const PROCESS_PREFIX: &str = "/process.v1.ProcessService/";
/// Methods that need no key. The contract's server answers them.
const HEALTH_PREFIX: &str = "/grpc.health.v1.Health/";

#[derive(Clone)]
struct GrpcListener {
    /// The gRPC services of the contract, with their layers.
    grpc: HttpService,
    /// The services of this listener.
    routes: Routes,
    check_caller: CallerCheck,
    /// Bytes of requests that have not arrived completely.
    buffered: Arc<ByteBudget>,
}

/// The service of the listener. `grpc` has the gRPC services with their layers.
pub(super) fn service(
    grpc: HttpService,
    check_caller: CallerCheck,
    buffered: Arc<ByteBudget>,
) -> HttpService {
    let processes = ProcessServiceServer::new(AgentProcessHandler::new(grpc.clone()))
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let reflection_v1 = reflection().build_v1().expect("build.rs compiled the descriptors");
    let reflection_v1alpha =
        reflection().build_v1alpha().expect("build.rs compiled the descriptors");
    let routes = Routes::new(processes)
        .add_service(reflection_v1.max_decoding_message_size(MAX_REFLECTION_BYTES))
        .add_service(reflection_v1alpha.max_decoding_message_size(MAX_REFLECTION_BYTES))
        .prepare();

    let listener = GrpcListener { grpc, routes, check_caller, buffered };
    HttpService::new(service_fn(move |request| listener.clone().call(request)))
}

impl GrpcListener {
    async fn call(self, mut request: Request<Body>) -> Result<Response<Body>, Infallible> {
        if !is_native_grpc(&request) {
            let text = "this address speaks gRPC over HTTP/2: files and probes have another one";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Ok(ApiError::new(status, "INVALID_ARGUMENT", text).into_http());
        }
        if request.uri().path().starts_with(HEALTH_PREFIX) {
            return self.grpc.oneshot(request).await;
        }

        let caller = (self.check_caller)(request.headers(), request.extensions());
        let caller: PrincipalName = match caller {
            Ok(name) => name.into(),
            Err(error) => return Ok(to_status(&error).into_http()),
        };
        request.extensions_mut().insert(CallerName(Arc::clone(&caller)));
        if !request.uri().path().starts_with(PROCESS_PREFIX) {
            return self.routes.oneshot(request).await;
        }

        let (parts, body) = request.into_parts();
        let buffer = BodyBuffer::new(&self.buffered, &caller, PREFIX_BYTES + MAX_MESSAGE_BYTES);
        let body = match buffer.read(axum::body::Body::new(body)).await {
            Ok(body) => body,
            Err(error) => return Ok(Status::from(error).into_http()),
        };
        // `body` is dropped when the response begins: until then, its memory is reserved.
        let message = Body::new(Full::new(body.data.clone()));
        self.routes.oneshot(Request::from_parts(parts, message)).await
    }
}

fn reflection() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(api::PROCESS_V1_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // The details of errors.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
}
