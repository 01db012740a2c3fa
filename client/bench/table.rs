//! What was measured, as text: numbers with their units, in columns.

use std::fmt::Write as _;

use super::statistics::{Bound, Target, Unit};

pub(super) fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

pub(super) fn times(ratio: f64) -> String {
    format!("{ratio:.2} x")
}

/// The targets, with what was measured.
pub(super) fn targets(targets: &[Target]) -> String {
    let mut rows = vec![["target", "bound", "measured", ""].map(String::from)];
    for target in targets {
        rows.push([
            target.promise.to_owned(),
            bound(target),
            with_unit(format!("{:.2}", target.measured), target.unit),
            target.verdict().to_owned(),
        ]);
    }
    table(&rows)
}

/// Where the number of a target must lie.
pub(super) fn bound(target: &Target) -> String {
    match target.bound {
        Bound::AtMost(most) => with_unit(format!("<= {most}"), target.unit),
        Bound::AtLeast(least) => with_unit(format!(">= {least}"), target.unit),
    }
}

fn with_unit(number: String, unit: Unit) -> String {
    match unit {
        Unit::Times => number + " x",
        Unit::Milliseconds => number + " ms",
        Unit::Mebibytes => number + " MiB",
        Unit::Pieces => number,
    }
}

/// Columns of equal width, the first flush left, the others flush right.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a String cannot fail.
            if column == 0 {
                write!(line, "{cell:<width$}").ok();
            } else {
                write!(line, "  {cell:>width$}").ok();
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let rows = [["a", "1"], ["long", "200"]].map(|row| row.map(String::from));
        assert_eq!(table(&rows), "a       1\nlong  200\n");
    }
}
