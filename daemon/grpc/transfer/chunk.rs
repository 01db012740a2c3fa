//! Validates the chunks of an upload.

use crate::{
    api::v1::{UploadChunk, UploadRequest, upload_request::Part},
    daemon::error::Error,
};

/// Maximum size of a chunk.
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// Returns the new bytes of a message. Returns `None` if the stream has ended after all data.
pub(super) fn new_bytes(
    message: Option<UploadRequest>,
    length: u64,
    size: u64,
) -> Result<Option<bytes::Bytes>, Error> {
    let Some(message) = message else {
        if length < size {
            let text = format!(
                "the stream ended after {length} of {size} bytes: send the rest; with an upload_id, resume from there"
            );
            return Err(Error::invalid_field("chunk", text));
        }
        return Ok(None);
    };

    let Some(Part::Chunk(UploadChunk { offset, mut data })) = message.part else {
        let text = "must be in each message after the first";
        return Err(Error::invalid_field("chunk", text));
    };
    if data.len() > MAX_CHUNK_BYTES {
        let text = format!("must have at most {MAX_CHUNK_BYTES} bytes");
        return Err(Error::invalid_field("chunk.data", text));
    }
    if offset > length {
        let text = format!("leaves a gap: the next byte is that at {length}");
        return Err(Error::invalid_field("chunk.offset", text));
    }
    let bytes = data.len() as u64;
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        let text = format!("goes beyond the {size} bytes of size_bytes");
        return Err(Error::invalid_field("chunk.data", text));
    }

    // Skip bytes that were received before the connection was lost.
    let known = usize::try_from((length - offset).min(bytes)).unwrap_or(data.len());
    Ok(Some(data.split_off(known)))
}
