//! Field blocks as clients write them, rewritten whole and in parts.

use super::{
    AUTHORITY_NAME_HUFFMAN, AuthorityRewriter, CONTINUATION_FRAME, HEADERS_FRAME, PADDED_FLAG,
    PREFACE, PRIORITY_FLAG,
};

const DATA: u8 = 0;
const PLAIN: Coding = Coding::Plain;
const HUFFMAN: Coding = Coding::Huffman;

/// How strings are encoded.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Coding {
    Plain,
    Huffman,
}

/// HPACK's Huffman code, canonical: the symbols of each length, from a first code on (RFC 7541,
/// appendix B).
const SYMBOLS: [(usize, u32, &str); 4] = [
    (5, 0x0, "012aceiost"),
    (6, 0x14, " %-./3456789=A_bdfghlmnpru"),
    (7, 0x5c, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, 0xf8, "&*,;XZ"),
];

fn huffman(text: &str) -> Vec<u8> {
    let mut bits = String::new();
    for symbol in text.chars() {
        let codes = SYMBOLS.iter().find_map(|(length, first, symbols)| {
            let position = symbols.find(symbol)?;
            Some((*length, first + u32::try_from(position).unwrap()))
        });
        let (length, code) = codes.unwrap();
        bits += &format!("{code:0length$b}");
    }
    bits += &"1".repeat(bits.len().wrapping_neg() % 8);
    let bytes = bits.as_bytes().chunks(8);
    bytes.map(|byte| u8::from_str_radix(str::from_utf8(byte).unwrap(), 2).unwrap()).collect()
}

/// An integer after the bits of `first` (RFC 7541, section 5.1).
fn integer(first: u8, prefix: u32, value: usize) -> Vec<u8> {
    let largest = (1 << prefix) - 1;
    if value < largest {
        return vec![first | u8::try_from(value).unwrap()];
    }
    let mut bytes = vec![first | u8::try_from(largest).unwrap()];
    let mut rest = value - largest;
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128).unwrap() | 0x80);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

fn string(text: &str, coding: Coding) -> Vec<u8> {
    let (bit, bytes) = match coding {
        Coding::Plain => (0, text.as_bytes().to_vec()),
        Coding::Huffman => (0x80, huffman(text)),
    };
    [integer(bit, 7, bytes.len()), bytes].concat()
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// All representations of a field with the name `:authority`.
fn authorities(value: &str, coding: Coding) -> Vec<Vec<u8>> {
    let mut fields = Vec::new();
    for (bits, prefix) in [(0x40, 6), (0x00, 4), (0x10, 4)] {
        fields.push([integer(bits, prefix, 1), string(value, coding)].concat());
        for name in [PLAIN, HUFFMAN] {
            let name = string(":authority", name);
            fields.push([vec![bits], name, string(value, coding)].concat());
        }
    }
    fields
}

/// A block with other fields around `field`, whose values must not change.
fn block(field: &[u8], coding: Coding) -> Vec<u8> {
    let other = |name: &str, value: &str| {
        [vec![0x40], string(name, coding), string(value, coding)].concat()
    };
    [
        &[0x3f, 0xe1, 0x1f, 0x83, 0x86][..], // a size of the table, two indexed fields
        &integer(0x40, 6, 4),                // :path
        &string("/a%2Fb", coding),
        &other("x-authority", "/a%2Fb"),
        field,
        &other(":authoritz", &"%2F".repeat(200)),
        &integer(0x80, 7, 200), // an indexed field of the dynamic table
    ]
    .concat()
}

fn rewritten(data: &[u8], part: usize) -> Vec<u8> {
    let mut data = data.to_vec();
    let mut rewriter = AuthorityRewriter::new();
    for part in data.chunks_mut(part) {
        rewriter.rewrite(part);
    }
    data
}

/// Connections that send one field block in all possible framings.
fn connections(block: &[u8]) -> Vec<Vec<u8>> {
    let settings = frame(4, 0, &[0, 1, 0, 0, 0, 0]);
    let begin = |rest: Vec<Vec<u8>>| [PREFACE.to_vec(), settings.clone(), rest.concat()].concat();
    let data = frame(DATA, PADDED_FLAG, b"\x02%/%\0\0");
    let priority = [&[0, 0, 0, 0, 16], block].concat();
    let padded = [&[7], block, &[b'%'; 7]].concat();
    let both = [&[3], &priority[..], &[0; 3]].concat();

    let mut connections = vec![
        begin(vec![
            frame(HEADERS_FRAME, 0x4, block),
            data.clone(),
            frame(HEADERS_FRAME, 0x5, block),
        ]),
        begin(vec![frame(HEADERS_FRAME, PRIORITY_FLAG, &priority), data.clone()]),
        begin(vec![frame(HEADERS_FRAME, PADDED_FLAG, &padded), data.clone()]),
        begin(vec![frame(HEADERS_FRAME, PADDED_FLAG | PRIORITY_FLAG, &both), data]),
    ];
    for cut in (0..block.len()).step_by(3) {
        let (first, second) = block.split_at(cut);
        let parts =
            [(HEADERS_FRAME, first), (CONTINUATION_FRAME, &[]), (CONTINUATION_FRAME, second)];
        let frames = parts.iter().map(|(kind, part)| frame(*kind, 0, part));
        connections.push(begin(frames.collect()));
    }
    connections
}

#[test]
fn path_becomes_a_host_name_however_its_bytes_are_split() {
    for (path, plain, huffman) in [
        ("tmp%2Fa%2Fjig.sock", "tmp.2Fa.2Fjig.sock", "tmp.2Fa.2Fjig.sock"),
        ("%2F", ".2F", ".2F"),
        ("/run/a b:c.sock", ".run.a.b.c.sock", "3run3a-bBc.sock"),
        ("localhost", "localhost", "localhost"),
        ("", "", ""),
    ] {
        for (coding, host) in [(PLAIN, plain), (HUFFMAN, huffman)] {
            let (before, after) = (authorities(path, coding), authorities(host, coding));
            for (before, after) in before.iter().zip(&after) {
                let (before, after) = (block(before, coding), block(after, coding));
                for (before, after) in connections(&before).iter().zip(connections(&after)) {
                    for part in [1, 2, 3, 7, 1 << 20] {
                        assert_eq!(rewritten(before, part), after, "{path} {coding:?} {part}");
                    }
                }
            }
        }
    }
}

#[test]
fn constant_is_the_huffman_code_of_the_name() {
    assert_eq!(huffman(":authority"), AUTHORITY_NAME_HUFFMAN);
}

#[test]
fn invalid_http2_is_not_rewritten() {
    let field = block(&authorities("/%", PLAIN)[0], PLAIN);
    let request = frame(HEADERS_FRAME, 0x4, &field);
    let padding = frame(HEADERS_FRAME, PADDED_FLAG, &[200, 1, 2]);
    let priority = frame(HEADERS_FRAME, PRIORITY_FLAG, &[1, 2]);
    let http_1 = [&b"GET /% HTTP/1.1\r\n"[..], &request].concat();
    let too_padded = [&PREFACE[..], &padding, &request].concat();
    let too_short = [&PREFACE[..], &priority, &request].concat();
    for data in [&http_1, &too_padded, &too_short] {
        assert_eq!(&rewritten(data, 5), data);
    }
    // An endless integer invalidates its own block only.
    let endless = frame(HEADERS_FRAME, 0x4, &[&[0x7f][..], &[0xff; 9], &field].concat());
    let data = [&PREFACE[..], &endless, &request].concat();
    let result = rewritten(&data, 5);
    let (first, second) = result.split_at(data.len() - request.len());
    assert_eq!(first, &data[..first.len()]);
    assert_ne!(second, request);
}

#[test]
fn random_bytes_never_panic_and_splits_do_not_matter() {
    let mut random = fastrand::Rng::with_seed(21);
    for _ in 0..2_000 {
        let any = random.u8(..);
        let mut data = PREFACE.to_vec();
        for _ in 0..random.usize(..6) {
            let payload: Vec<u8> = (0..random.usize(..80))
                .map(|_| random.choice([0, 1, 0x40, 0x41, 0x7f, 0x82, 0xff, b'%', any]).unwrap())
                .collect();
            let kind = random.choice([DATA, HEADERS_FRAME, CONTINUATION_FRAME, any]);
            data.extend(frame(kind.unwrap(), random.u8(..), &payload));
        }
        data.truncate(random.usize(PREFACE.len()..=data.len()));
        let whole = rewritten(&data, data.len());
        assert_eq!(rewritten(&data, random.usize(1..9)), whole, "{data:?}");
        assert_eq!(rewritten(&whole, 3), whole, "a second pass changes nothing: {data:?}");
    }
}
