//! Formats rows of cells as aligned columns.

use unicode_width::UnicodeWidthStr as _;

/// Pads each column to its widest cell, measured in terminal columns. Trims the end of each line.
pub(super) fn align_columns(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| cell(row, column).width());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();

    let line = |row: &Vec<String>| {
        let cells = widths.iter().enumerate().map(|(column, width)| {
            let text = cell(row, column);
            if column + 1 == columns {
                return text;
            }
            let padding = width.saturating_sub(text.width());
            text + &" ".repeat(padding)
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_display_width() {
        let rows = [["A", "LONG", "C"], ["aaa", "b", "c"], ["a", "", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(align_columns(&rows), "A    LONG  C\naaa  b     c\na\n");
        let rows = [["NAME", "SIZE"], ["日本語", "1"], ["e\u{301}", "2"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(align_columns(&rows), "NAME    SIZE\n日本語  1\ne\u{301}       2\n");
    }
}
