//! The file of a request, which is its body or a part of a form.
//!
//! A file is held until all of it has arrived, because an upload of the contract begins with the
//! checksum of its bytes.

use axum::extract::{FromRequest as _, Multipart, Request};
use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE};

use crate::daemon::http::{ArrivalTimeout, BodyBuffer, BodyError, BufferedBody};

/// Name of the part with the file.
const FILE_PART: &str = "file";
const FORM_TYPE: &str = "multipart/form-data";

/// Reads the file of a request into `buffer`.
pub(super) async fn read_file(
    mut buffer: BodyBuffer<'_>,
    request: Request,
) -> Result<BufferedBody, BodyError> {
    if !is_form(request.headers()) {
        return buffer.read(request.into_body()).await;
    }
    read_form(&mut buffer, request).await?;
    Ok(buffer.finish())
}

/// Reads a form to its end. Its first part of the right name is the file.
async fn read_form(buffer: &mut BodyBuffer<'_>, request: Request) -> Result<(), BodyError> {
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|rejection| BodyError::unreadable(&rejection.body_text()))?;
    let mut has_file = false;
    let mut arrival = ArrivalTimeout::new();
    loop {
        let part = arrival.wait(buffer.len(), form.next_field()).await?;
        let part = part.map_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => BodyError::too_large(buffer.max_bytes()),
            _ => BodyError::unreadable(&error.body_text()),
        })?;
        let Some(part) = part else { break };
        if part.name() == Some(FILE_PART) && !has_file {
            has_file = true;
            buffer.read_bytes(part).await?;
        }
    }
    if has_file {
        Ok(())
    } else {
        Err(BodyError::unreadable(&format!("the form has no part {FILE_PART:?}")))
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(FORM_TYPE.as_bytes())
}
