//! An OTLP collector that stores the spans, metrics and log records it receives.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{
            ExportLogsServiceRequest, ExportLogsServiceResponse,
            logs_service_server::{LogsService, LogsServiceServer},
        },
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{KeyValue, any_value::Value},
    logs::v1::LogRecord,
    metrics::v1::Metric,
    resource::v1::Resource,
    trace::v1::Span,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status,
    codec::CompressionEncoding,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

/// An OTLP collector. Clones share what it receives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Received>>);

#[derive(Debug, Default)]
struct Received {
    spans: Vec<(Resource, Span)>,
    /// The metrics of the last export.
    metrics: Vec<Metric>,
    logs: Vec<LogRecord>,
    /// Resources of metrics and of logs.
    other_resources: Vec<Resource>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut received = self.0.lock().unwrap();
        for group in request.into_inner().resource_spans {
            let resource = group.resource.unwrap_or_default();
            let spans = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
            received.spans.extend(spans.map(|span| (resource.clone(), span)));
        }

        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let mut received = self.0.lock().unwrap();
        received.metrics.clear();
        for group in request.into_inner().resource_metrics {
            received.other_resources.extend(group.resource);
            let metrics = group.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
            received.metrics.extend(metrics);
        }

        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let mut received = self.0.lock().unwrap();
        for group in request.into_inner().resource_logs {
            received.other_resources.extend(group.resource);
            let records = group.scope_logs.into_iter().flat_map(|scope| scope.log_records);
            received.logs.extend(records);
        }

        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector on a free port and returns its address.
    pub(crate) fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        (Self::serve(listener), address)
    }

    /// Starts a collector on `listener`.
    pub(crate) fn serve(listener: TcpListener) -> Self {
        Self::serve_with(Server::builder(), listener)
    }

    /// As [`Self::serve`], with TLS: the certificate and its key as PEM.
    pub(crate) fn serve_tls(listener: TcpListener, [certificate, key]: [String; 2]) -> Self {
        let identity = Identity::from_pem(certificate, key);
        let tls = ServerTlsConfig::new().identity(identity);
        Self::serve_with(Server::builder().tls_config(tls).unwrap(), listener)
    }

    /// As [`Self::serve_tls`], for clients with a certificate of the CA.
    pub(crate) fn serve_mutual_tls(
        listener: TcpListener,
        [certificate, key]: [String; 2],
        client_ca: String,
    ) -> Self {
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(certificate, key))
            .client_ca_root(Certificate::from_pem(client_ca));
        Self::serve_with(Server::builder().tls_config(tls).unwrap(), listener)
    }

    fn serve_with(mut server: Server, listener: TcpListener) -> Self {
        let collector = Self::default();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let traces = TraceServiceServer::new(collector.clone());
        let metrics = MetricsServiceServer::new(collector.clone());
        let logs = LogsServiceServer::new(collector.clone());
        let server = server
            .add_service(traces.accept_compressed(CompressionEncoding::Gzip))
            .add_service(metrics.accept_compressed(CompressionEncoding::Gzip))
            .add_service(logs.accept_compressed(CompressionEncoding::Gzip))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);

        collector
    }

    /// The received spans.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let received = self.0.lock().unwrap();
        received.spans.iter().map(|(_, span)| span.clone()).collect()
    }

    /// The received spans of a trace.
    pub(crate) fn spans_of_trace(&self, id: &str) -> Vec<Span> {
        let received = self.0.lock().unwrap();
        let spans = received.spans.iter().map(|(_, span)| span);
        spans.filter(|span| hex(&span.trace_id) == id).cloned().collect()
    }

    /// The resource of the first received span.
    pub(crate) fn first_resource(&self) -> Resource {
        self.0.lock().unwrap().spans.first().unwrap().0.clone()
    }

    /// The metrics of the last export.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        self.0.lock().unwrap().metrics.clone()
    }

    /// The received log records.
    pub(crate) fn log_records(&self) -> Vec<LogRecord> {
        self.0.lock().unwrap().logs.clone()
    }

    /// The resources of the received metrics and log records.
    pub(crate) fn other_resources(&self) -> Vec<Resource> {
        self.0.lock().unwrap().other_resources.clone()
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of an attribute, as text.
pub(crate) fn attribute_text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == name)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        value => panic!("{name} is {value:?}"),
    })
}
