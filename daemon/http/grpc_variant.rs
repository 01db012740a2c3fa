//! Tells requests of gRPC and gRPC-Web from others, by their content type.

use http::{HeaderMap, HeaderValue, Request, Version, header::CONTENT_TYPE};

/// A protocol of which all content types begin with `application/grpc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrpcVariant {
    Grpc,
    GrpcWeb,
}

impl GrpcVariant {
    /// The variant that `headers` name.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes)?;
        let prefix = content_type.get(.."application/grpc".len())?;
        if !prefix.eq_ignore_ascii_case(b"application/grpc") {
            return None;
        }
        let rest = content_type.get(prefix.len()..).unwrap_or_default();
        let is_web = rest.get(..4).is_some_and(|rest| rest.eq_ignore_ascii_case(b"-web"));
        Some(if is_web { Self::GrpcWeb } else { Self::Grpc })
    }
}

/// Whether a request is gRPC over HTTP/2, as native clients send it.
pub(crate) fn is_native_grpc<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2
        && GrpcVariant::of(request.headers()) == Some(GrpcVariant::Grpc)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};

    use super::GrpcVariant;

    fn variant(content_type: &'static str) -> Option<GrpcVariant> {
        let content_type = HeaderValue::from_static(content_type);
        GrpcVariant::of(&HeaderMap::from_iter([(CONTENT_TYPE, content_type)]))
    }

    #[test]
    fn variants_are_known_by_their_prefix() {
        assert_eq!(variant("application/grpc"), Some(GrpcVariant::Grpc));
        assert_eq!(variant("application/GRPC+proto; a=b"), Some(GrpcVariant::Grpc));
        assert_eq!(variant("application/grpc-web"), Some(GrpcVariant::GrpcWeb));
        assert_eq!(variant("application/grpc-Web-text+proto"), Some(GrpcVariant::GrpcWeb));
        assert_eq!(variant("application/json"), None);
        assert_eq!(variant("application/grp"), None);
        assert_eq!(GrpcVariant::of(&HeaderMap::new()), None);
    }
}
