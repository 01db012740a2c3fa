//! How far a transfer has come: one line on standard error, when that is a terminal.

use std::{
    borrow::Cow,
    env,
    io::{self, IsTerminal as _},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::termios::tcgetwinsize;

use crate::{escape, output};

/// Time between two looks of the line.
const INTERVAL: Duration = Duration::from_millis(100);
/// Characters of the bar where there is room for them.
const BAR: usize = 24;
/// And where there is not.
const SHORTEST_BAR: usize = 8;
/// Columns of a terminal that does not tell.
const COLUMNS: usize = 80;

/// The line of one file. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    /// None where there is no terminal that a line can be redrawn on.
    drawn: Option<Mutex<Drawn>>,
}

/// What has been seen of a transfer.
#[derive(Debug)]
struct Drawn {
    /// When the line was last drawn.
    last: Instant,
    /// Where the transfer was first seen, and when. One that goes on where an earlier one was broken
    /// off does not begin with the first byte.
    from: (u64, Instant),
    /// Where it was seen last; none before it was first.
    at: Option<u64>,
}

impl Progress {
    /// The line of a file, if anybody is there to see it.
    pub(crate) fn new(name: &str, quiet: bool) -> Self {
        let now = Instant::now();
        let is_dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
        let is_seen = !quiet && !is_dumb && io::stderr().is_terminal();
        Self {
            name: escape::name(name).into_owned(),
            drawn: is_seen.then(|| {
                Mutex::new(Drawn {
                    last: now,
                    from: (0, now),
                    at: None,
                })
            }),
        }
    }

    /// So many bytes of the file have gone over.
    pub(crate) fn at(&self, bytes: u64, size: u64) {
        let Some(drawn) = &self.drawn else { return };
        let now = Instant::now();
        let mut drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = drawn.rate(bytes, now);
        if now.duration_since(drawn.last) < INTERVAL {
            return;
        }
        drawn.last = now;
        // Each time: it may have been made wider or narrower.
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let columns = if columns == 0 { COLUMNS } else { columns };
        let line = line(&self.name, (bytes, size), rate, columns);
        output::stderr(format!("\r{line}\x1b[K").as_bytes());
    }
}

impl Drawn {
    /// Bytes in a second, now that so many have gone over.
    fn rate(&mut self, bytes: u64, now: Instant) -> u64 {
        // It is seen first, or began again.
        if self.at.is_none_or(|at| bytes < at) {
            self.from = (bytes, now);
        }
        self.at = Some(bytes);
        let (from, since) = self.from;
        let time = now.duration_since(since).as_millis().max(1);
        let rate = u128::from(bytes.saturating_sub(from)) * 1000 / time;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            output::stderr(b"\r\x1b[K");
        }
    }
}

/// The line, which leaves the last column free: a line that reaches it may go on in the next one,
/// from where it cannot be taken back.
fn line(name: &str, (bytes, size): (u64, u64), rate: u64, columns: usize) -> String {
    let part = |whole: u64| u128::from(bytes) * u128::from(whole) / u128::from(size.max(1));
    let numbers = format!(
        "{:>3}% {} of {} ({}/s)",
        part(100),
        amount(bytes),
        amount(size),
        amount(rate),
    );
    let columns = columns.saturating_sub(1);
    // Beside the name and the bar: two blanks and the ends of the bar.
    let room = columns.saturating_sub(numbers.len() + 4);
    let bar = room.saturating_sub(width(name)).clamp(SHORTEST_BAR, BAR);
    let name = cut(name, room.saturating_sub(bar));
    if name.is_empty() {
        return numbers.chars().take(columns).collect();
    }
    let filled = usize::try_from(part(bar as u64)).map_or(bar, |filled| filled.min(bar));
    format!(
        "{name} [{}{}] {numbers}",
        "=".repeat(filled),
        " ".repeat(bar - filled),
    )
}

/// The end of a name, which tells more than its beginning, in at most so many columns.
fn cut(name: &str, columns: usize) -> Cow<'_, str> {
    if width(name) <= columns {
        return Cow::Borrowed(name);
    }
    let mut left = columns.saturating_sub(width("…"));
    let kept = name.chars().rev().take_while(|character| {
        let fits = width_of(*character) <= left;
        left = left.saturating_sub(width_of(*character));
        fits
    });
    let kept: usize = kept.map(char::len_utf8).sum();
    match kept {
        0 => Cow::Borrowed(""),
        _ => Cow::Owned(format!("…{}", &name[name.len() - kept..])),
    }
}

/// Most columns that a text takes.
fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

/// Most columns that a character takes: no tables, for a name that is cut somewhat early is one
/// still.
fn width_of(character: char) -> usize {
    if character.is_ascii() { 1 } else { 2 }
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
        let half = (512, 1024);
        assert_eq!(
            line("f", half, 512, 80),
            "f [============            ]  50% 512 B of 1.0 KiB (512 B/s)"
        );
        assert!(line("f", (0, 0), 0, 80).contains("  0%"));
        let long = "directory/".repeat(20) + "name";
        assert_eq!(
            line(&long, half, 512, 60),
            "…directory/name [====    ]  50% 512 B of 1.0 KiB (512 B/s)"
        );
        assert_eq!(line(&long, half, 512, 20), " 50% 512 B of 1.0 K");
    }

    #[test]
    fn no_line_reaches_the_last_column() {
        let (large, name) = ((u64::MAX - 1, u64::MAX), "\u{30d5}\u{30a1}".repeat(60));
        for name in ["f", "a/rather/long/name/of/a/file.txt", &name] {
            for columns in 0..200 {
                let line = line(name, large, u64::MAX, columns);
                assert!(width(&line) < columns.max(1), "{columns}: {line}");
            }
        }
    }

    #[test]
    fn rates_are_of_what_came_while_somebody_looked() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut drawn = Drawn {
            last: begun,
            from: (0, begun),
            at: None,
        };
        for (bytes, seconds, rate) in [
            // Of these, most had come before.
            (1_000_000, 1, 0),
            (1_000_100, 2, 100),
            (1_000_300, 3, 150),
            // It begins again.
            (10, 4, 0),
            (60, 5, 50),
        ] {
            assert_eq!(drawn.rate(bytes, after(seconds)), rate, "{bytes}");
        }
    }
}
