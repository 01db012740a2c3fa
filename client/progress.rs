//! Progress of a transfer: one line on standard error, if it is a terminal.

use std::io;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::escape;

/// Template of the line.
const PROGRESS_TEMPLATE: &str = "{name} [{bar:12}] {percent:>3}% {binary_bytes} of {binary_total_bytes} ({binary_bytes_per_sec})";
/// Columns of the line without the name, and one free column: some terminals wrap a full line.
const RESERVED_COLUMNS: usize = 64;
/// Assumed width of a terminal that reports none.
const DEFAULT_COLUMNS: u16 = 80;
/// Maximum redraws of the line per second.
const MAX_DRAWS_PER_SECOND: u8 = 10;

/// Progress line of one file. Dropping it removes the line.
#[derive(Debug)]
pub(crate) struct ProgressLine(ProgressBar);

impl ProgressLine {
    /// Draws nothing if `quiet`, without a terminal, and on a dumb terminal.
    pub(crate) fn new(name: &str, quiet: bool) -> Self {
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(MAX_DRAWS_PER_SECOND)
        };

        let name = escape::name(name).into_owned();
        let style = ProgressStyle::with_template(PROGRESS_TEMPLATE)
            .expect("the template is valid")
            .progress_chars("= ")
            .with_key("name", move |_: &ProgressState, line: &mut dyn std::fmt::Write| {
                // Read each time, because the terminal may have been resized.
                let columns = tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
                let columns = if columns == 0 { DEFAULT_COLUMNS } else { columns };
                let columns = usize::from(columns).saturating_sub(RESERVED_COLUMNS);
                // A terminal that has gone is no failure of the transfer.
                line.write_str(&truncate_start(&name, columns)).ok();
            });

        Self(ProgressBar::with_draw_target(Some(0), target).with_style(style))
    }

    /// Shows that `bytes` of `size` bytes have been transferred.
    pub(crate) fn update(&self, bytes: u64, size: u64) {
        let before = self.0.position();
        self.0.set_length(size);
        self.0.set_position(bytes);

        // Bytes from before a resume do not count for the rate.
        if before == 0 || bytes < before {
            self.0.reset_eta();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Returns the end of a name, in at most `columns` columns. The end says more than the start.
fn truncate_start(name: &str, columns: usize) -> String {
    if name.width() <= columns {
        return name.to_owned();
    }

    let mut width = 1; // of the ellipsis
    let fits = |&(_, character): &(usize, char)| {
        width += character.width().unwrap_or(0);
        width <= columns
    };

    let start = name.char_indices().rev().take_while(fits).last();
    start.map_or_else(String::new, |(start, _)| format!("…{}", &name[start..]))
}

/// Formats a size for people: `1.5 MiB`.
pub(crate) fn format_bytes(bytes: u64) -> String {
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
    fn sizes_have_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536 << 10, "1.5 MiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn names_are_truncated_at_the_start() {
        for (name, columns, cut) in [
            ("name", 4, "name"),
            ("a/name", 5, "…name"),
            ("\u{30d5}\u{30a1}", 4, "\u{30d5}\u{30a1}"),
            ("\u{30d5}\u{30a1}", 3, "…\u{30a1}"),
            ("\u{30d5}", 1, ""),
            ("name", 0, ""),
        ] {
            assert_eq!(truncate_start(name, columns), cut, "{name} {columns}");
        }
    }
}
