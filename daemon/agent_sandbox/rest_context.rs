//! What the routes of the REST API share.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use crate::daemon::{http::HttpService, queue::ByteBudget};

/// The state of the routes.
#[derive(Debug, Clone)]
pub(super) struct RestContext {
    /// The gRPC services with their layers.
    pub(super) grpc: HttpService,
    /// Environment variables that the operator lists.
    pub(super) metadata: Arc<BTreeMap<String, String>>,
    pub(super) started: Instant,
    /// Bytes of requests that have not arrived completely.
    pub(super) buffered: Arc<ByteBudget>,
}
