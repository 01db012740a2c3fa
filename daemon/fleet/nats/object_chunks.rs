//! Sizes of the messages of the object store.

/// Size of the chunks of an object, as other clients of NATS have it.
const MAX_CHUNK_BYTES: usize = 128 << 10;
/// Size of chunks that any server has to accept.
const MIN_CHUNK_BYTES: usize = 1 << 10;
/// Bytes of a message beside its content: headers and subject.
pub(super) const MESSAGE_OVERHEAD_BYTES: usize = 4 << 10;

/// Returns the size of the chunks of an object on a server whose largest message has `max_payload`
/// bytes.
pub(super) fn chunk_bytes(max_payload: usize) -> usize {
    let max_bytes = max_payload.saturating_sub(MESSAGE_OVERHEAD_BYTES);
    MAX_CHUNK_BYTES.min(max_bytes.max(MIN_CHUNK_BYTES))
}
