//! Bodies of REST requests: JSON objects that become requests of the contract.

use std::sync::LazyLock;

use axum::extract::{FromRequest, Request};
use http::{
    StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Map, Value as Json};

use super::{
    body_buffer::{BodyBuffer, BodyMemory},
    rest_error::RestError,
    unique_json::read_unique_json,
};
use crate::{
    api,
    daemon::{
        catalog::json::{self, read_json_message},
        error::{Error, Violation},
        grpc::status::to_status,
    },
};

/// Longest body, as document E says.
const MAX_BODY_BYTES: usize = 1 << 20;

static CONTRACT: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).ok());

/// The body of a request, which must be a JSON object.
#[derive(Debug)]
pub(super) struct JsonObject(pub(super) Map<String, Json>);

impl<S: Send + Sync> FromRequest<S> for JsonObject {
    type Rejection = RestError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, RestError> {
        // Browsers send other types across origins without asking first.
        let content_type =
            request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let essence = content_type.and_then(|value| value.split(';').next()).map(str::trim);
        if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
            let text = "'content-type' must be application/json";
            return Err(RestError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "VALIDATION_ERROR",
                text,
            ));
        }
        if request.headers().get(CONTENT_ENCODING).is_some_and(|value| value != "identity") {
            let text = "'content-encoding' must be identity: send the body without compression";
            return Err(RestError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "VALIDATION_ERROR",
                text,
            ));
        }

        let memory = request.extensions().get::<BodyMemory>().cloned();
        let memory = memory.ok_or_else(|| Error::internal("the caller of a body is unknown"));
        let BodyMemory { budget, caller } = memory.map_err(|error| RestError::from(&error))?;
        let body = BodyBuffer::new(&budget, &caller, MAX_BODY_BYTES).read(request.into_body());
        match read_unique_json(&body.await?.data) {
            Ok(Json::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(RestError::invalid("the body must be a JSON object", Map::new())),
            Err(error) => {
                let text = format!("the body is no valid JSON: {error}");
                Err(RestError::invalid(text, Map::new()))
            }
        }
    }
}

/// Reads a message of the contract. Reports every field that does not fit, after the `violations` of
/// the route.
pub(super) fn read_request<T: Message + Default>(
    name: &str,
    fields: &Map<String, Json>,
    mut violations: Vec<Violation>,
) -> Result<T, RestError> {
    let descriptor = descriptor(name)?;
    match read_json_message(&descriptor, fields) {
        Ok(message) if violations.is_empty() => {
            T::decode(&*message.encode_to_vec()).map_err(internal)
        }
        read => {
            violations.extend(read.err().into_iter().flatten());
            Err(to_status(&Error::invalid(violations)).into())
        }
    }
}

/// Writes a message of the contract, with the names of its fields there.
pub(super) fn write_message(name: &str, message: &impl Message) -> Result<Json, RestError> {
    let descriptor = descriptor(name)?;
    let message =
        DynamicMessage::decode(descriptor, &*message.encode_to_vec()).map_err(internal)?;
    json::write(&message).map(Json::Object).map_err(|error| to_status(&error).into())
}

fn descriptor(name: &str) -> Result<MessageDescriptor, RestError> {
    let descriptor = CONTRACT.as_ref().and_then(|contract| contract.get_message_by_name(name));
    descriptor.ok_or_else(|| to_status(&Error::internal("no such message")).into())
}

fn internal(error: impl std::error::Error + Send + Sync + 'static) -> RestError {
    to_status(&Error::internal(error)).into()
}
