//! A collector of spans that keeps what it gets.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::Span,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// The collector.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<(Resource, Span)>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap();
        for from in request.into_inner().resource_spans {
            let resource = from.resource.unwrap_or_default();
            let spans = from.scope_spans.into_iter().flat_map(|scope| scope.spans);
            kept.extend(spans.map(|span| (resource.clone(), span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector on a free port; answers its address.
    pub(crate) fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        (Self::serve(listener), address)
    }

    /// Starts a collector on a listener.
    pub(crate) fn serve(listener: TcpListener) -> Self {
        let collector = Self::default();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        collector
    }

    /// The spans of a trace.
    pub(crate) fn spans(&self, id: &str) -> Vec<Span> {
        let kept = self.0.lock().unwrap();
        let spans = kept.iter().map(|(_, span)| span);
        spans
            .filter(|span| hex(&span.trace_id) == id)
            .cloned()
            .collect()
    }

    /// What sent the first span.
    pub(crate) fn resource(&self) -> Resource {
        self.0.lock().unwrap().first().unwrap().0.clone()
    }
}

/// An id as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute's value as text.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let value = attributes
        .iter()
        .find(|attribute| attribute.key == name)?
        .value
        .clone()?
        .value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        other => panic!("{name} is {other:?}"),
    })
}
