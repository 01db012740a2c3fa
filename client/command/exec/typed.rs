//! What is typed or piped in on this side, read by a thread of its own: reading cannot be cancelled.

use std::{
    io::{self, Read as _},
    thread,
};

use tokio::sync::mpsc;

/// Bytes read at a time.
const PART_BYTES: usize = 64 * 1024;
/// Parts that are read ahead.
const AHEAD: usize = 2;

/// Begins to read standard input. The end of the parts is the end of the input, or an error in
/// reading it.
pub(super) fn read() -> mpsc::Receiver<Vec<u8>> {
    let (parts, receiver) = mpsc::channel(AHEAD);
    // It ends with the process, when nobody types any more.
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; PART_BYTES];
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(bytes) => {
                    let part = buffer.get(..bytes).unwrap_or_default().to_vec();
                    if parts.blocking_send(part).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    receiver
}
