//! Formats measurements as text tables with units.

use std::fmt::Write as _;

use super::statistics::{BenchTarget, TargetBound, TargetUnit};

pub(super) fn format_milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

pub(super) fn format_ratio(ratio: f64) -> String {
    format!("{ratio:.2} x")
}

/// Formats the targets with their measurements.
pub(super) fn targets_table(targets: &[BenchTarget]) -> String {
    let mut rows = vec![["target", "bound", "measured", ""].map(String::from)];
    for target in targets {
        rows.push([
            target.label.to_owned(),
            format_bound(target),
            with_unit(format!("{:.2}", target.measured), target.unit),
            target.verdict().to_owned(),
        ]);
    }
    align_numbers(&rows)
}

/// Formats the bound of a target.
pub(super) fn format_bound(target: &BenchTarget) -> String {
    match target.bound {
        TargetBound::AtMost(bound) => with_unit(format!("<= {bound}"), target.unit),
        TargetBound::AtLeast(bound) => with_unit(format!(">= {bound}"), target.unit),
    }
}

fn with_unit(number: String, unit: TargetUnit) -> String {
    match unit {
        TargetUnit::Ratio => number + " x",
        TargetUnit::Milliseconds => number + " ms",
        TargetUnit::Mebibytes => number + " MiB",
        TargetUnit::Count => number,
    }
}

/// Aligns columns: the first to the left, the others to the right.
pub(super) fn align_numbers<const N: usize>(rows: &[[String; N]]) -> String {
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
    fn numbers_are_aligned_to_the_right() {
        let rows = [["a", "1"], ["long", "200"]].map(|row| row.map(String::from));
        assert_eq!(align_numbers(&rows), "a       1\nlong  200\n");
    }
}
