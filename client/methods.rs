//! Macro for the methods of unary RPCs, which all have the same shape.

/// Defines methods of [`Client`](super::call::Client). Each calls the RPC of its name at
/// `$service`.
macro_rules! methods {
    ($service:ident { $($(#[$doc:meta])* $name:ident($request:ty) -> $response:ty;)* }) => {
        impl Client {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                ///
                /// Returns an error if the call fails.
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
