//! Methods of RPCs that answer once: all have the same shape.

/// Makes methods of [`Client`](super::call::Client), each of which calls the RPC of its name at the
/// `$service` of the connection.
macro_rules! methods {
    ($service:ident { $($(#[$doc:meta])* $name:ident($request:ty) -> $response:ty;)* }) => {
        impl Client {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                ///
                /// When the call failed.
                pub async fn $name(&self, request: $request) -> Result<$response, CallError> {
                    let mut service = self.$service();
                    self.unary(request, |request| async move { service.$name(request).await })
                        .await
                }
            )*
        }
    };
}

pub(super) use methods;
