//! Zstandard (RFC 8878), as it arrives: one block at a time, in bounded memory.
//!
//! The crate `ruzstd` keeps hostile data out of libzstd, which is C. It needs whole blocks. This
//! module finds their ends, so that no call decodes more than one of them: a block of 4 bytes can
//! stand for 128 KiB.

use ruzstd::{
    decoding::{BlockDecodingStrategy, FrameDecoder},
    encoding::{CompressionLevel, compress_to_vec},
};

use super::error::{ArchiveError, ArchiveErrorKind};

/// Largest window of a frame: what RFC 8878 recommends to accept. The decoder holds as much in
/// memory.
const MAX_WINDOW_BYTES: u64 = 8 << 20;
/// Bytes that each received byte may expand to, beyond [`FREE_EXPANSION_BYTES`].
const MAX_EXPANSION_RATIO: u64 = 256;
/// Bytes that any stream may expand to.
const FREE_EXPANSION_BYTES: u64 = 64 << 20;
/// Largest content of a block.
const MAX_BLOCK_BYTES: usize = 128 << 10;
/// Largest frame header: magic number, descriptor, window, dictionary id and content size.
const MAX_FRAME_HEADER_BYTES: usize = 18;
const FRAME_MAGIC: u32 = 0xfd2f_b528;
/// The lowest four bits of the magic number of a skippable frame are arbitrary.
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;

/// Decodes a stream of frames.
pub struct ZstdDecoder {
    decoder: FrameDecoder,
    state: DecoderState,
    /// Input that is not decoded yet.
    input: Vec<u8>,
    /// Start of the rest of `input`.
    start: usize,
    received_bytes: u64,
    decoded_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    /// Before a frame, or after the last one.
    BetweenFrames,
    /// In a frame, which may end with a checksum.
    Frame { has_checksum: bool },
    /// In a skippable frame.
    Skip(u64),
}

impl ZstdDecoder {
    /// Creates a decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        Self {
            decoder,
            state: DecoderState::BetweenFrames,
            input: Vec::new(),
            start: 0,
            received_bytes: 0,
            decoded_bytes: 0,
        }
    }

    /// Adds input. To be called when [`Self::decode`] needs more.
    pub fn push(&mut self, data: &[u8]) {
        self.input.drain(..self.start);
        self.start = 0;
        self.input.extend_from_slice(data);
        self.received_bytes += data.len() as u64;
    }

    /// Decodes one block into `output`, which it clears first. Returns `false` if it needs more
    /// input. The output has at most a window and a block.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream is malformed or expands too much.
    pub fn decode(&mut self, output: &mut Vec<u8>) -> Result<bool, ArchiveError> {
        output.clear();
        let has_progress = match self.state {
            DecoderState::BetweenFrames => self.begin_frame()?,
            DecoderState::Frame { has_checksum } => self.decode_block(has_checksum, output)?,
            DecoderState::Skip(remaining) => {
                let available = self.input.len() - self.start;
                let skipped = usize::try_from(remaining).unwrap_or(usize::MAX).min(available);
                self.start += skipped;
                let remaining = remaining - skipped as u64;
                self.state = if remaining > 0 {
                    DecoderState::Skip(remaining)
                } else {
                    DecoderState::BetweenFrames
                };
                skipped > 0 || remaining == 0
            }
        };

        self.decoded_bytes += output.len() as u64;
        let max_bytes = FREE_EXPANSION_BYTES
            .saturating_add(self.received_bytes.saturating_mul(MAX_EXPANSION_RATIO));
        if self.decoded_bytes > max_bytes {
            let text = format!(
                "the data expands to more than {MAX_EXPANSION_RATIO} times its size: send it without compression"
            );
            return Err(ArchiveError::new(ArchiveErrorKind::TooLarge, text));
        }
        Ok(has_progress)
    }

    /// Checks that the stream is complete.
    ///
    /// # Errors
    ///
    /// Returns an error if it ends within a frame.
    pub fn finish(&self) -> Result<(), ArchiveError> {
        if self.state == DecoderState::BetweenFrames && self.start == self.input.len() {
            return Ok(());
        }
        Err(ArchiveError::invalid("the compressed data is incomplete"))
    }

    fn begin_frame(&mut self) -> Result<bool, ArchiveError> {
        let rest = &self.input[self.start..];
        let Some((magic, after)) = rest.split_first_chunk::<4>() else {
            return Ok(false);
        };
        let magic = u32::from_le_bytes(*magic);
        if magic & !0xf == SKIPPABLE_MAGIC {
            let Some(length) = after.first_chunk::<4>() else {
                return Ok(false);
            };
            self.state = DecoderState::Skip(u32::from_le_bytes(*length).into());
            self.start += 8;
            return Ok(true);
        }
        if magic != FRAME_MAGIC {
            return Err(ArchiveError::invalid("the data is not compressed with zstd"));
        }

        let Some(descriptor) = after.first() else {
            return Ok(false);
        };
        let length = frame_header_bytes(*descriptor);
        let Some(mut header) = rest.get(..length) else {
            return Ok(false);
        };
        self.decoder.reset(&mut header).map_err(|error| invalid(&error))?;
        self.start += length;
        self.state = DecoderState::Frame { has_checksum: descriptor & 4 != 0 };
        Ok(true)
    }

    fn decode_block(
        &mut self,
        has_checksum: bool,
        output: &mut Vec<u8>,
    ) -> Result<bool, ArchiveError> {
        let rest = &self.input[self.start..];
        let Some(header) = rest.first_chunk::<3>() else {
            return Ok(false);
        };
        // Last block, type, size (RFC 8878, 3.1.1.2).
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let is_last = header & 1 == 1;
        let is_repeated_byte = (header >> 1) & 3 == 1;
        let size = usize::try_from(header >> 3).unwrap_or(usize::MAX);
        if size > MAX_BLOCK_BYTES {
            return Err(ArchiveError::invalid("the compressed data has a block of over 128 KiB"));
        }
        let content = if is_repeated_byte { 1 } else { size };
        let length = 3 + content + if is_last && has_checksum { 4 } else { 0 };
        let Some(mut block) = rest.get(..length) else {
            return Ok(false);
        };

        let strategy = BlockDecodingStrategy::UptoBlocks(1);
        self.decoder.decode_blocks(&mut block, strategy).map_err(|error| invalid(&error))?;
        self.decoder.collect_to_writer(&mut *output).map_err(|error| invalid(&error))?;
        self.start += length;
        if is_last {
            let stored = self.decoder.get_checksum_from_data();
            if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
                return Err(ArchiveError::invalid("the checksum of the compressed data is wrong"));
            }
            self.state = DecoderState::BetweenFrames;
        }
        Ok(true)
    }
}

impl Default for ZstdDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ZstdDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZstdDecoder").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Compresses data as a frame of its own. A stream is a sequence of frames.
#[must_use]
pub fn zstd_frame(data: &[u8]) -> Vec<u8> {
    compress_to_vec(data, CompressionLevel::Fastest)
}

/// Length of a frame header with this descriptor (RFC 8878, 3.1.1.1).
fn frame_header_bytes(descriptor: u8) -> usize {
    let is_single_segment = descriptor & 0x20 != 0;
    let window = usize::from(!is_single_segment);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content_size = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    (4 + 1 + window + dictionary + content_size).min(MAX_FRAME_HEADER_BYTES)
}

fn invalid(error: &impl std::fmt::Display) -> ArchiveError {
    ArchiveError::invalid(format!("the compressed data is malformed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(data: &[u8], piece: usize) -> Result<Vec<u8>, ArchiveError> {
        let mut decoder = ZstdDecoder::new();
        let (mut decoded, mut output) = (Vec::new(), Vec::new());
        for piece in data.chunks(piece) {
            decoder.push(piece);
            while decoder.decode(&mut output)? {
                decoded.extend_from_slice(&output);
            }
        }
        decoder.finish()?;
        Ok(decoded)
    }

    /// A frame with a window of 128 KiB and these blocks.
    fn frame(window: u8, blocks: &[u8]) -> Vec<u8> {
        [&FRAME_MAGIC.to_le_bytes()[..], &[0, window], blocks].concat()
    }

    /// A block that repeats a zero 128 KiB times.
    fn zeros(is_last: bool) -> [u8; 4] {
        let header = u32::try_from(MAX_BLOCK_BYTES << 3).unwrap() | 2 | u32::from(is_last);
        let [low, middle, high, _] = header.to_le_bytes();
        [low, middle, high, 0]
    }

    #[test]
    fn frames_are_decoded_in_pieces_of_any_size() {
        let data: Vec<u8> = (0..300_000_u32).map(|index| (index / 7 % 251) as u8).collect();
        let skippable = [&SKIPPABLE_MAGIC.to_le_bytes()[..], &[3, 0, 0, 0], b"abc"].concat();
        let (first, second) = data.split_at(200_000);
        let stream = [zstd_frame(first), skippable, zstd_frame(second)].concat();
        assert!(stream.len() < data.len() / 2);
        for piece in [1, 1000, stream.len()] {
            assert_eq!(decode(&stream, piece).unwrap(), data);
        }
        for length in [3, 5, 100, stream.len() - 1] {
            assert!(decode(&stream[..length], 64).is_err(), "{length}");
        }
        assert!(decode(&[], 1).unwrap().is_empty());
    }

    #[test]
    fn bomb_ends_with_an_error() {
        let allowed = frame(0x38, &[zeros(false), zeros(false), zeros(true)].concat());
        assert_eq!(decode(&allowed, 100).unwrap().len(), 3 * MAX_BLOCK_BYTES);
        let bomb = frame(0x38, &zeros(false).repeat(10_000));
        let mut decoder = ZstdDecoder::new();
        decoder.push(&bomb);
        let (mut output, mut decoded) = (Vec::new(), 0);
        let error = loop {
            match decoder.decode(&mut output) {
                Ok(has_progress) => assert!(has_progress),
                Err(error) => break error,
            }
            assert!(output.len() <= 2 * MAX_BLOCK_BYTES);
            decoded += output.len() as u64;
        };
        assert_eq!(error.kind, ArchiveErrorKind::TooLarge);
        assert!(decoded <= FREE_EXPANSION_BYTES + 256 * bomb.len() as u64);
    }

    #[test]
    fn large_windows_and_other_data_are_rejected() {
        for (data, text) in [
            (frame(0x68, &zeros(true)), ""), // 8 MiB
            (frame(0x69, &zeros(true)), "malformed"),
            // A single segment of 2^63 bytes, which is its window.
            (
                [&FRAME_MAGIC.to_le_bytes()[..], &[0xe0, 0, 0, 0, 0, 0, 0, 0, 0x80]].concat(),
                "malformed",
            ),
            (frame(0xff, &zeros(true)), "malformed"),
            (frame(0x38, &[0xff, 0xff, 0xff]), "128 KiB"),
            (b"ustar archive".to_vec(), "not compressed"),
        ] {
            match decode(&data, 5) {
                Ok(_) => assert_eq!(text, ""),
                Err(error) => assert!(!text.is_empty() && error.message.contains(text), "{error}"),
            }
        }
    }
}
