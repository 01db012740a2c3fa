//! What a caller sends to authenticate itself.

use std::borrow::Cow;

use crate::daemon::{
    config::client_certificate::ClientCertificate,
    error::{Error, Reason},
};

/// The credentials of a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Credentials<'a> {
    pub(crate) key: Option<&'a [u8]>,
    /// The certificate of the connection, verified by the CA of its listener.
    pub(crate) certificate: Option<&'a ClientCertificate>,
}

pub(super) fn unauthenticated_error(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Reason::Unauthenticated, text)
}
