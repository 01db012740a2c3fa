//! Lines of cells, below one that names the columns.

use unicode_width::UnicodeWidthStr as _;

/// Each column as wide as its widest cell; the last one needs no room behind it.
pub(super) fn align_columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| cell(row, column).width());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = widths.iter().enumerate().map(|(column, width)| {
            let text = cell(row, column);
            match column + 1 == count {
                true => text,
                false => {
                    let room = width.saturating_sub(text.width());
                    text + &" ".repeat(room)
                }
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_one_another() {
        let rows = [["A", "LONG", "C"], ["aaa", "b", "c"], ["a", "", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(align_columns(&rows), "A    LONG  C\naaa  b     c\na\n");
        let rows = [["NAME", "SIZE"], ["日本語", "1"], ["e\u{301}", "2"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(align_columns(&rows), "NAME    SIZE\n日本語  1\ne\u{301}       2\n");
    }
}
