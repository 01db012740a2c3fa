//! Clients that send the path of a Unix socket as `:authority`, with the exact bytes of real
//! clients.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
};

use crate::support::{Daemon, wait_timeout};

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn http2_frame(kind: u8, flags: u8, stream: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &[kind, flags, 0, 0, 0, stream], content].concat()
}

/// An HPACK string without Huffman coding.
fn hpack_string(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    assert!(length < 127);
    [&[length], text.as_bytes()].concat()
}

/// The header block of a health check. Path and authority are added to the dynamic table.
fn first_call(authority: &[u8]) -> Vec<u8> {
    let path = [&[0x44][..], &hpack_string("/grpc.health.v1.Health/Check")].concat();
    let kind = [&[0x0f, 16][..], &hpack_string("application/grpc")].concat();
    let te = [&[0x00][..], &hpack_string("te"), &hpack_string("trailers")].concat();
    [&[0x83, 0x86][..], &path, authority, &kind, &te].concat()
}

/// The same request with references to the dynamic table: the authority was added last, the path
/// before it.
fn second_call() -> Vec<u8> {
    let kind = [&[0x0f, 16][..], &hpack_string("application/grpc")].concat();
    let te = [&[0x00][..], &hpack_string("te"), &hpack_string("trailers")].concat();
    [&[0x83, 0x86, 0xbf, 0xbe][..], &kind, &te].concat()
}

/// Sends calls in chunks, and reads until each stream is answered or reset. Returns the type of the
/// first such frame for each stream.
fn response_frame_types(
    daemon: &Daemon,
    calls: &[u8],
    streams: usize,
    chunk_bytes: usize,
) -> BTreeMap<u8, u8> {
    let mut connection = UnixStream::connect(daemon.socket()).unwrap();
    connection.set_read_timeout(Some(wait_timeout())).unwrap();
    let settings = http2_frame(SETTINGS, 0, 0, &[]);
    let sent = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, calls].concat();

    for chunk in sent.chunks(chunk_bytes) {
        connection.write_all(chunk).unwrap();
    }

    let mut answers = BTreeMap::new();
    while answers.len() < streams {
        let mut head = [0; 9];
        connection.read_exact(&mut head).unwrap();
        let [a, b, c, kind, .., stream] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut content = vec![0; usize::try_from(length).unwrap()];
        connection.read_exact(&mut content).unwrap();

        assert_ne!(kind, GOAWAY, "{content:?}");

        if [HEADERS, RST_STREAM].contains(&kind) {
            answers.entry(stream).or_insert(kind);
        }
    }

    answers
}

#[tokio::test]
async fn socket_path_is_accepted_as_authority() {
    let daemon = Daemon::start().await;
    let message = |stream| http2_frame(0, END_STREAM, stream, &[0; 5]);
    let expected = BTreeMap::from([(1, HEADERS), (3, HEADERS)]);

    for authority in [
        // The form of gRPC's C core.
        [&[0x40][..], &hpack_string(":authority"), &hpack_string("tmp%2Fa%2Fjig.sock")].concat(),
        // The form of grpc-java.
        [&[0x41][..], &hpack_string("/tmp/a b/jig.sock")].concat(),
        // `%2Ftmp%2Fa b.sock` in Huffman code.
        b"\x41\x8d\x54\x58\x53\x4d\x6a\x8b\x08\xd4\x8d\x74\x1c\x9d\x7f".to_vec(),
        [&[0x41][..], &hpack_string("localhost:50051")].concat(),
    ] {
        let (first, second) = (first_call(&authority), second_call());
        let (begin, end) = first.split_at(first.len() / 2);
        for headers in [
            [http2_frame(HEADERS, END_HEADERS, 1, &first)].concat(),
            [http2_frame(HEADERS, 0, 1, begin), http2_frame(CONTINUATION, END_HEADERS, 1, end)]
                .concat(),
        ] {
            let second = http2_frame(HEADERS, END_HEADERS, 3, &second);
            let calls = [headers, message(1), second, message(3)].concat();
            for chunk_bytes in [1, 1 << 20] {
                let answers = response_frame_types(&daemon, &calls, 2, chunk_bytes);
                assert_eq!(answers, expected, "{}", authority.escape_ascii());
            }
        }
    }
}
