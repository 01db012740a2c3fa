//! Rewrites `:authority` values that are socket paths into valid host names.
//!
//! Over a Unix socket, gRPC's C core, grpc-java and grpc-swift send its path as `:authority`. h2
//! rejects that with PROTOCOL_ERROR (hyperium/h2#442, hyperium/h2#487).
//!
//! Each byte that is invalid in a host name is replaced by a valid one, in place in the read
//! buffer. No length changes, so frames and the sizes of HPACK's dynamic table stay valid, and h2's
//! table holds the rewritten value. Hence the rewriter needs no table and buffers nothing.

#[cfg(test)]
mod tests;

/// Client connection preface (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
// Types and flags of frames (RFC 9113, section 6).
const HEADERS_FRAME: u8 = 1;
const CONTINUATION_FRAME: u8 = 9;
const PADDED_FLAG: u8 = 0x08;
const PRIORITY_FLAG: u8 = 0x20;
const PRIORITY_BYTES: u32 = 5;

/// Index of `:authority` in HPACK's static table (RFC 7541, appendix A).
const AUTHORITY_INDEX: u32 = 1;
const AUTHORITY_NAME: &[u8] = b":authority";
/// `:authority` in HPACK's Huffman code.
const AUTHORITY_NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// Largest shift of a continued integer. Larger integers exceed the length of any field block.
const MAX_INTEGER_SHIFT: u32 = 14;

/// Parses what a client sends on one connection, and rewrites `:authority` values in it.
#[derive(Debug)]
pub(super) struct AuthorityRewriter {
    frame: FrameState,
    field: FieldState,
}

/// Position in the sequence of frames.
#[derive(Debug, Clone, Copy)]
enum FrameState {
    Preface {
        matched: usize,
    },
    Header {
        bytes: [u8; FRAME_HEADER_BYTES],
        filled: usize,
    },
    /// Before the padding length of a frame with `remaining` more bytes.
    PadLength {
        remaining: u32,
        priority: u32,
    },
    /// Remaining bytes: to skip, of the field block, of padding.
    Payload {
        skip: u32,
        block: u32,
        padding: u32,
    },
    /// Invalid HTTP/2, which h2 reports.
    Malformed,
}

/// Position in a field block (RFC 7541, section 6).
#[derive(Debug, Clone, Copy)]
enum FieldState {
    Start,
    /// Inside an integer that continues.
    Integer {
        value: u32,
        shift: u32,
        meaning: IntegerMeaning,
    },
    /// Before the length of a string.
    Length(StringKind),
    /// Inside a name. `unmatched` is the end of `:authority` not read yet; `None` if the name
    /// differs.
    Name {
        remaining: u32,
        unmatched: Option<&'static [u8]>,
    },
    Value {
        remaining: u32,
        coding: ValueCoding,
    },
    Malformed,
}

/// What an integer means.
#[derive(Debug, Clone, Copy)]
enum IntegerMeaning {
    /// The index of a complete field, or a size of the dynamic table.
    Other,
    NameIndex,
    PlainLength(StringKind),
    HuffmanLength(StringKind),
}

#[derive(Debug, Clone, Copy)]
enum StringKind {
    Name,
    Authority,
    OtherValue,
}

/// How the bytes of a value are rewritten.
#[derive(Debug, Clone, Copy)]
enum ValueCoding {
    /// Unchanged: the value of another field.
    Skipped,
    Plain,
    Huffman(HuffmanSymbol),
}

impl ValueCoding {
    /// Rewrites one byte of a value.
    fn rewrite(&mut self, byte: &mut u8) {
        match self {
            Self::Skipped => {}
            Self::Plain => {
                let is_valid = byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
                *byte = if is_valid { *byte } else { b'.' };
            }
            Self::Huffman(code) => code.rewrite(byte),
        }
    }
}

/// The bits read so far of a symbol of the Huffman code.
#[derive(Debug, Clone, Copy, Default)]
struct HuffmanSymbol {
    bits: u32,
    count: u32,
}

impl AuthorityRewriter {
    /// Starts at the beginning of a connection.
    pub(super) fn new() -> Self {
        Self { frame: FrameState::Preface { matched: 0 }, field: FieldState::Start }
    }

    /// Rewrites the next bytes of the connection, cut anywhere.
    pub(super) fn rewrite(&mut self, mut data: &mut [u8]) {
        while let Some(&mut first) = data.first_mut() {
            let mut consumed = 1;
            self.frame = match self.frame {
                FrameState::Malformed => return,
                FrameState::Preface { matched } if PREFACE.get(matched) != Some(&first) => {
                    FrameState::Malformed
                }
                FrameState::Preface { matched } if matched + 1 == PREFACE.len() => {
                    FrameState::START
                }
                FrameState::Preface { matched } => FrameState::Preface { matched: matched + 1 },
                FrameState::Header { mut bytes, filled } => {
                    bytes[filled] = first;
                    match filled + 1 {
                        FRAME_HEADER_BYTES => self.begin_payload(bytes),
                        filled => FrameState::Header { bytes, filled },
                    }
                }
                FrameState::PadLength { remaining, priority } => {
                    let padding = u32::from(first);
                    match remaining.checked_sub(1 + priority + padding) {
                        Some(block) => FrameState::payload(priority, block, padding),
                        None => FrameState::Malformed,
                    }
                }
                FrameState::Payload { skip, block, padding } => {
                    let part = [skip, block].into_iter().find(|&part| part > 0);
                    let available = u32::try_from(data.len()).unwrap_or(u32::MAX);
                    let count = part.unwrap_or(padding).min(available);
                    consumed = count as usize;

                    if skip > 0 {
                        FrameState::payload(skip - count, block, padding)
                    } else if block > 0 {
                        for byte in &mut data[..consumed] {
                            self.field = self.field.next(byte);
                        }
                        FrameState::payload(0, block - count, padding)
                    } else {
                        FrameState::payload(0, 0, padding - count)
                    }
                }
            };

            data = &mut data[consumed..];
        }
    }

    fn begin_payload(&mut self, header: [u8; FRAME_HEADER_BYTES]) -> FrameState {
        let [length_1, length_2, length_3, kind, flags, ..] = header;
        let remaining = u32::from_be_bytes([0, length_1, length_2, length_3]);
        match kind {
            HEADERS_FRAME => {
                self.field = FieldState::Start;
                let has = |flag| flags & flag != 0;
                let priority = if has(PRIORITY_FLAG) { PRIORITY_BYTES } else { 0 };
                if has(PADDED_FLAG) && remaining > 0 {
                    return FrameState::PadLength { remaining, priority };
                }
                match remaining.checked_sub(priority) {
                    Some(block) => FrameState::payload(priority, block, 0),
                    None => FrameState::Malformed,
                }
            }
            CONTINUATION_FRAME => FrameState::payload(0, remaining, 0),
            _ => FrameState::payload(remaining, 0, 0),
        }
    }
}

impl FrameState {
    const START: Self = Self::Header { bytes: [0; FRAME_HEADER_BYTES], filled: 0 };

    fn payload(skip: u32, block: u32, padding: u32) -> Self {
        if (skip, block, padding) == (0, 0, 0) {
            return Self::START;
        }
        Self::Payload { skip, block, padding }
    }
}

impl FieldState {
    fn next(self, byte: &mut u8) -> Self {
        match self {
            Self::Malformed => Self::Malformed,
            Self::Start => Self::representation(*byte),
            Self::Integer { value, shift, meaning } => {
                let value = value + (u32::from(*byte & 0x7f) << shift);
                if *byte & 0x80 == 0 {
                    return Self::after_integer(value, meaning);
                }
                if shift == MAX_INTEGER_SHIFT {
                    return Self::Malformed;
                }
                Self::Integer { value, shift: shift + 7, meaning }
            }
            Self::Length(kind) => {
                let meaning = match *byte & 0x80 {
                    0 => IntegerMeaning::PlainLength(kind),
                    _ => IntegerMeaning::HuffmanLength(kind),
                };
                Self::integer(*byte, 7, meaning)
            }
            Self::Name { remaining, unmatched } => {
                let unmatched = unmatched.and_then(|unmatched| unmatched.strip_prefix(&[*byte]));
                match remaining {
                    1 => Self::Length(StringKind::value(unmatched.is_some_and(<[u8]>::is_empty))),
                    _ => Self::Name { remaining: remaining - 1, unmatched },
                }
            }
            Self::Value { remaining, mut coding } => {
                coding.rewrite(byte);
                match remaining {
                    1 => Self::Start,
                    _ => Self::Value { remaining: remaining - 1, coding },
                }
            }
        }
    }

    /// Begins a field by its first byte, which has its representation (RFC 7541, section 6).
    fn representation(byte: u8) -> Self {
        match byte {
            byte if byte & 0x80 != 0 => Self::integer(byte, 7, IntegerMeaning::Other),
            byte if byte & 0x40 != 0 => Self::integer(byte, 6, IntegerMeaning::NameIndex),
            byte if byte & 0x20 != 0 => Self::integer(byte, 5, IntegerMeaning::Other),
            byte => Self::integer(byte, 4, IntegerMeaning::NameIndex),
        }
    }

    /// Begins an integer in the lowest `prefix` bits of a byte (RFC 7541, section 5.1).
    fn integer(byte: u8, prefix: u32, meaning: IntegerMeaning) -> Self {
        let largest = (1 << prefix) - 1;
        let value = u32::from(byte) & largest;
        if value < largest {
            return Self::after_integer(value, meaning);
        }
        Self::Integer { value, shift: 0, meaning }
    }

    fn after_integer(value: u32, meaning: IntegerMeaning) -> Self {
        match (meaning, value) {
            (IntegerMeaning::Other, _) => Self::Start,
            (IntegerMeaning::NameIndex, 0) => Self::Length(StringKind::Name),
            (IntegerMeaning::NameIndex, index) => {
                Self::Length(StringKind::value(index == AUTHORITY_INDEX))
            }
            (IntegerMeaning::PlainLength(kind), length) => {
                kind.begin(length, AUTHORITY_NAME, ValueCoding::Plain)
            }
            (IntegerMeaning::HuffmanLength(kind), length) => {
                let coding = ValueCoding::Huffman(HuffmanSymbol::default());
                kind.begin(length, AUTHORITY_NAME_HUFFMAN, coding)
            }
        }
    }
}

impl StringKind {
    fn value(is_authority: bool) -> Self {
        if is_authority { Self::Authority } else { Self::OtherValue }
    }

    /// Begins a string. `name` is `:authority` in the string's coding.
    fn begin(self, length: u32, name: &'static [u8], coding: ValueCoding) -> FieldState {
        match (self, length) {
            (Self::Name, 0) => FieldState::Length(Self::OtherValue),
            (Self::Name, remaining) => FieldState::Name { remaining, unmatched: Some(name) },
            (Self::Authority | Self::OtherValue, 0) => FieldState::Start,
            (Self::Authority, remaining) => FieldState::Value { remaining, coding },
            (Self::OtherValue, remaining) => {
                FieldState::Value { remaining, coding: ValueCoding::Skipped }
            }
        }
    }
}

impl HuffmanSymbol {
    /// Rewrites symbols of paths that are invalid in a host name by setting one bit of each.
    ///
    /// ` ` and `%` become `-` and `.`, `/` becomes `3`, `:` becomes `B`. Other invalid symbols are
    /// left to h2.
    fn rewrite(&mut self, byte: &mut u8) {
        for bit in (0..8).rev() {
            self.bits = self.bits << 1 | u32::from(*byte >> bit & 1);
            self.count += 1;
            if matches!((self.count, self.bits), (5, 0b0_1010) | (6, 0b01_1000) | (7, 0b101_1100)) {
                *byte |= 1 << bit;
                self.bits |= 1;
            }
            if self.is_complete() {
                *self = Self::default();
            }
        }
    }

    /// Whether the bits are a complete symbol.
    ///
    /// The code is canonical: all symbols of a length are below a bound (RFC 7541, appendix B). The
    /// only printable ASCII character with a longer code is `\`.
    fn is_complete(self) -> bool {
        let bound = match self.count {
            5 => 0xa,
            6 => 0x2e,
            7 => 0x7c,
            8 => 0xfe,
            10 => 0x3fd,
            11 => 0x7fd,
            12 => 0xffc,
            13 => 0x1ffe,
            14 => 0x3ffe,
            15 => 0x7fff,
            _ => return false,
        };
        self.bits < bound
    }
}
