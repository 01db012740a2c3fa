//! How far a transfer has come: one line on standard error, when that is a terminal.

use std::{
    io::{self, IsTerminal as _},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{escape, output};

/// Time between two looks of the line.
const INTERVAL: Duration = Duration::from_millis(100);
/// Characters of the bar.
const BAR: usize = 24;

/// The line of one file. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    begun: Instant,
    /// When it was last drawn; none where there is no terminal.
    drawn: Option<Mutex<Instant>>,
}

impl Progress {
    /// The line of a file, if anybody is there to see it.
    pub(crate) fn new(name: &str, quiet: bool) -> Self {
        let now = Instant::now();
        let seen = !quiet && io::stderr().is_terminal();
        Self {
            name: escape::name(name).into_owned(),
            begun: now,
            drawn: seen.then(|| Mutex::new(now)),
        }
    }

    /// So many bytes of the file have gone over.
    pub(crate) fn at(&self, bytes: u64, size: u64) {
        let Some(drawn) = &self.drawn else { return };
        let now = Instant::now();
        let mut drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(*drawn) < INTERVAL {
            return;
        }
        *drawn = now;
        let line = line(&self.name, bytes, size, now.duration_since(self.begun));
        output::stderr(format!("\r{line}\x1b[K").as_bytes());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            output::stderr(b"\r\x1b[K");
        }
    }
}

fn line(name: &str, bytes: u64, size: u64, time: Duration) -> String {
    let part = |whole: u64| u128::from(bytes) * u128::from(whole) / u128::from(size.max(1));
    let filled = usize::try_from(part(BAR as u64)).map_or(BAR, |filled| filled.min(BAR));
    let rate = u128::from(bytes) * 1000 / time.as_millis().max(1);
    format!(
        "{name} [{}{}] {:>3}% {} of {} ({}/s)",
        "=".repeat(filled),
        " ".repeat(BAR - filled),
        part(100),
        amount(bytes),
        amount(size),
        amount(u64::try_from(rate).unwrap_or(u64::MAX)),
    )
}

/// Bytes for people: `1.5 MiB`.
pub(crate) fn amount(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut tenths = u128::from(bytes) * 10;
    let mut name = "B";
    for unit in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        name = unit;
    }
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536 << 10, "1.5 MiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(amount(bytes), text);
        }
    }

    #[test]
    fn lines() {
        assert_eq!(
            line("f", 512, 1024, Duration::from_secs(1)),
            "f [============            ]  50% 512 B of 1.0 KiB (512 B/s)"
        );
        assert!(line("f", 0, 0, Duration::ZERO).contains("  0%"));
    }
}
