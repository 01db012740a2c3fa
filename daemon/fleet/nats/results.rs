//! The object store of results that are too large for a record.

use async_nats::jetstream::object_store::{GetErrorKind, ObjectStore};
use prost::Message as _;
use tokio::io::AsyncReadExt as _;

use crate::{
    api::v1::InvokeResponse,
    daemon::{
        error::{Error, Reason},
        fleet::work_source::SourceUnavailable,
    },
};

/// Results by the names that records have for them.
#[derive(Debug, Clone)]
pub(crate) struct FleetResults {
    store: ObjectStore,
}

impl FleetResults {
    pub(super) fn new(store: ObjectStore) -> Self {
        Self { store }
    }

    /// Stores a result. Replaces one with the same name.
    pub(super) async fn put(
        &self,
        name: &str,
        result: &InvokeResponse,
    ) -> Result<(), SourceUnavailable> {
        let bytes = result.encode_to_vec();
        let stored = self.store.put(name, &mut bytes.as_slice()).await;
        stored.map(drop).map_err(SourceUnavailable::new)
    }

    /// Reads a result, and checks its digest.
    pub(super) async fn get(&self, name: &str) -> Result<InvokeResponse, Error> {
        let mut object = self.store.get(name).await.map_err(|error| {
            if error.kind() == GetErrorKind::NotFound {
                let text = "the result of this job is no longer stored";
                return Error::new(Reason::DaemonLost, text).with_cause(error);
            }
            SourceUnavailable::new(error).into()
        })?;
        let mut bytes = Vec::new();
        object.read_to_end(&mut bytes).await.map_err(SourceUnavailable::new)?;
        InvokeResponse::decode(bytes.as_slice()).map_err(Error::internal)
    }
}
