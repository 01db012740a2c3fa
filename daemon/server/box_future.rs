//! The future that the layers return.

use std::pin::Pin;

/// A boxed future that can move between threads.
pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
