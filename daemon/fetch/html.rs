//! HTML as Markdown or text. A page may be made to hurt who reads it: elements in elements without end overflow
//! the stack of whoever walks down a tree, and some that are not closed are made anew by parsers in each element
//! that follows. So the parser gets none but what is written here, in one pass over the page: elements that mean
//! something for Markdown, closed in the order in which they were opened, so deep and so many of them at most.

mod markup;
mod plain_text;

use std::{borrow::Cow, fmt::Write as _, io, ops::Deref};

use htmd::HtmlToMarkdown;
use memchr::{memchr, memmem};
use url::Url;

use self::{
    markup::{ElementKind, MarkupToken, StartTag},
    plain_text::{is_space, write_text},
};

/// Elements in one another; whatever is deeper is as good as in the deepest of them. Parts that are nothing but
/// parts do not count.
const MAX_DEPTH: usize = 48;
/// Blocks in one another: what they hold has room for links.
const MAX_BLOCK_DEPTH: usize = 40;
/// What is written for a block that means nothing but lines of its own.
const BLOCK_ELEMENT: &str = "div";
/// Elements of a page, each of which takes some hundred bytes. Of the rest, there is the text.
const MAX_ELEMENTS: usize = 100_000;
/// Pieces of a page in its tables that are in none of their cells. A parser puts each before its table, at a cost that
/// grows with what is there already; the rest is given cells.
const MAX_STRAY_TABLE_PIECES: usize = 256;
/// Longest URL of a link.
const MAX_LINK_BYTES: usize = 4096;
/// Bytes of links that are written as whole URLs: each has what it is relative to in it. The rest is as it was given.
const MAX_TOTAL_LINK_BYTES: usize = 8 << 20;

/// A page as Markdown, its links as URLs.
pub(super) fn markdown(page: &str, base: &Url) -> io::Result<String> {
    HtmlToMarkdown::new().convert(&sanitize(page, base))
}

/// The text of a page: a line for each of its parts, and no markup.
pub(super) fn text(page: &str, base: &Url) -> io::Result<String> {
    let tree = HtmlToMarkdown::new().html_to_tree(&sanitize(page, base))?;
    let mut text = String::new();
    write_text(&tree, &mut text, false);
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// The page that the parser gets.
fn sanitize(page: &str, base: &Url) -> String {
    let mut writer = HtmlSanitizer {
        page: String::with_capacity(page.len()),
        open: Vec::new(),
        elements: 0,
        base: Cow::Borrowed(base),
        has_base: false,
        stray_table_pieces: 0,
        link_bytes: 0,
    };
    let mut rest = page;
    while let Some(at) = memchr(b'<', rest.as_bytes()) {
        writer.write_text(rest.get(..at).unwrap_or_default());
        rest = rest.get(at..).unwrap_or_default();
        rest = match MarkupToken::parse(rest) {
            MarkupToken::Text => {
                writer.write_text("<");
                rest.get(1..).unwrap_or_default()
            }
            MarkupToken::Comment(end) => rest.get(end..).unwrap_or_default(),
            MarkupToken::Open(tag, after) => {
                let after = rest.get(after..).unwrap_or_default();
                match tag.element {
                    Some(known) if known.kind == ElementKind::Hidden => {
                        skip_hidden(after, known.output_name)
                    }
                    Some(known) => {
                        writer.open(known, &tag);
                        after
                    }
                    None => after,
                }
            }
            MarkupToken::Close(known, after) => {
                if let Some(known) = known {
                    writer.close(known);
                }
                rest.get(after..).unwrap_or_default()
            }
            MarkupToken::Unterminated => "",
        };
    }
    writer.write_text(rest);
    writer.close_down_to(0);
    writer.page
}

/// What comes behind an element whose content is not to be seen; nothing where it has no end.
fn skip_hidden<'a>(rest: &'a str, name: &str) -> &'a str {
    let mut from = 0;
    while let Some(at) = rest.get(from..).and_then(|rest| memmem::find(rest.as_bytes(), b"</")) {
        let end = from + at;
        let after = end + 2;
        let found = rest.get(after..after + name.len());
        if found.is_some_and(|found| found.eq_ignore_ascii_case(name)) {
            return rest.get(end..).unwrap_or_default();
        }
        from = after;
    }
    ""
}

struct HtmlSanitizer<'a> {
    page: String,
    open: Vec<OpenElement>,
    elements: usize,
    base: Cow<'a, Url>,
    /// Whether the page has said what its links are relative to: the first word counts.
    has_base: bool,
    /// Pieces that were in a table, and in no cell.
    stray_table_pieces: usize,
    /// Bytes of links that were written as whole URLs.
    link_bytes: usize,
}

/// An element that was begun.
#[derive(Debug)]
struct OpenElement {
    element: &'static markup::ElementSpec,
    /// How many parts it stands for beside the first: parts in parts are parts one after the other.
    merged_blocks: usize,
    /// Of a table, whether it has a row.
    has_rows: bool,
    /// Of a row, what its cells are.
    cells: Option<&'static markup::ElementSpec>,
}

impl Deref for OpenElement {
    type Target = markup::ElementSpec;

    fn deref(&self) -> &markup::ElementSpec {
        self.element
    }
}

impl HtmlSanitizer<'_> {
    /// Writes a text. What stands for a character goes on doing so.
    fn write_text(&mut self, text: &str) {
        if !text.chars().all(is_space) {
            if self.open.last().is_some_and(|open| open.output_name == "pre") {
                // It is code, also where the page does not say so: it is written as it is.
                self.open_implied("code");
            }
            self.ensure_cell();
        }
        let mut pieces = text.split('<');
        self.write_escaped(pieces.next().unwrap_or_default());
        for piece in pieces {
            self.page.push_str("&lt;");
            self.write_escaped(piece);
        }
    }

    fn write_escaped(&mut self, text: &str) {
        // NUL is nothing to a parser but a cause of errors.
        for piece in text.split('\0') {
            self.page.push_str(piece);
        }
    }

    fn push(&mut self, known: &'static markup::ElementSpec) {
        let mut cells = None;
        let table = self.open.iter_mut().rfind(|open| open.output_name == "table");
        if let Some(table) = table.filter(|_| known.output_name == "tr") {
            cells = markup::find_element(b"td").filter(|_| table.has_rows);
            table.has_rows = true;
        }
        self.open.push(OpenElement { element: known, merged_blocks: 0, has_rows: false, cells });
    }

    /// What a cell is written as: in Markdown the first row is the head of its table or none is, and no row has cells
    /// of both kinds.
    fn cell_element(
        &mut self,
        known: &'static markup::ElementSpec,
    ) -> &'static markup::ElementSpec {
        let row = self.open.iter_mut().rfind(|open| open.output_name == "tr");
        row.map_or(known, |row| row.cells.get_or_insert(known))
    }

    /// Begins an element that the page does not have.
    fn open_implied(&mut self, name: &str) {
        if let Some(known) = markup::find_element(name.as_bytes()) {
            write(&mut self.page, format_args!("<{}>", known.output_name));
            self.push(known);
        }
    }

    /// Gives what comes a cell, where it is in a table, in none, and not among the first to be so.
    fn ensure_cell(&mut self) {
        let mut open = self.open.iter().rev();
        let within = open.find(|open| open.kind != ElementKind::Inline);
        let missing: &[&str] = match within.map(|open| open.output_name) {
            Some("table") => &["tr", "td"],
            Some("tr") => &["td"],
            _ => return,
        };
        self.stray_table_pieces += 1;
        if self.stray_table_pieces > MAX_STRAY_TABLE_PIECES {
            missing.iter().for_each(|name| self.open_implied(name));
        }
    }

    fn open(&mut self, known: &'static markup::ElementSpec, tag: &StartTag<'_>) {
        if known.kind == ElementKind::Base {
            return self.set_base(tag);
        }
        if self.elements >= MAX_ELEMENTS {
            return;
        }
        self.elements += 1;
        if !matches!(known.output_name, "tr" | "td" | "th") {
            self.ensure_cell();
        }
        match known.kind {
            ElementKind::Hidden | ElementKind::Base => {}
            ElementKind::LineBreak if self.is_open("pre") => self.write_text("\n"),
            // There is nothing but code in code.
            ElementKind::Rule | ElementKind::Image if self.is_open("pre") => {}
            ElementKind::Inline if self.is_open("pre") && known.output_name != "code" => {}
            ElementKind::LineBreak | ElementKind::Rule => {
                write(&mut self.page, format_args!("<{}>", known.output_name))
            }
            ElementKind::Image => self.write_image(tag),
            ElementKind::Inline => {
                if known.output_name == "a" {
                    self.close(known);
                }
                let is_open = self.open.iter().any(|open| open.output_name == known.output_name);
                if self.open.len() < MAX_DEPTH && !is_open {
                    self.write_start_tag(known, tag);
                }
            }
            ElementKind::Block | ElementKind::Cell => {
                if self.is_open("pre") {
                    return;
                }
                if self.is_open("a") {
                    // The link is to keep its text.
                    self.page.push(' ');
                    return;
                }
                let blocks = self.open.iter().rposition(|open| open.kind != ElementKind::Inline);
                self.close_down_to(blocks.map_or(0, |last| last + 1));
                if self.open.last().is_some_and(|open| open.output_name == "p") {
                    self.close_down_to(self.open.len() - 1);
                }
                self.close_siblings(known);
                let known = match known.kind == ElementKind::Cell {
                    true => self.cell_element(known),
                    false => known,
                };
                // A table without a cell throws out what it holds, at some cost.
                let needed = match known.output_name {
                    "table" => 3,
                    "tr" => 2,
                    _ => 1,
                };
                let depth = self.open.len() + needed;
                match self.open.last_mut() {
                    Some(last)
                        if last.output_name == BLOCK_ELEMENT
                            && known.output_name == BLOCK_ELEMENT =>
                    {
                        last.merged_blocks += 1;
                        self.next_block();
                    }
                    _ if depth <= MAX_BLOCK_DEPTH => self.write_start_tag(known, tag),
                    _ => self.break_at_max_depth(known),
                }
            }
        }
    }

    /// Ends a part, and begins another.
    fn next_block(&mut self) {
        if self.page.ends_with("<div>") {
            return; // there is nothing in this one
        }
        write(&mut self.page, format_args!("</{BLOCK_ELEMENT}><{BLOCK_ELEMENT}>"));
    }

    /// What is too deep to be an element is at least apart from what is around it.
    fn break_at_max_depth(&mut self, known: &markup::ElementSpec) {
        let is_cell = known.kind == ElementKind::Cell;
        let between = if is_cell { " " } else { "<br>" };
        if !self.page.ends_with(between) {
            self.page.push_str(between);
        }
    }

    fn set_base(&mut self, tag: &StartTag<'_>) {
        let given = tag.attribute("href").filter(|_| !self.has_base);
        let Some(given) = given.filter(|given| given.len() <= MAX_LINK_BYTES) else {
            return;
        };
        self.has_base = true;
        let found = self.base.join(given).ok();
        if let Some(url) = found.filter(|url| matches!(url.scheme(), "http" | "https")) {
            self.base = Cow::Owned(url);
        }
    }

    /// Closes what the next of its kind closes: an item, a row, a cell.
    fn close_siblings(&mut self, known: &markup::ElementSpec) {
        let (siblings, within): (&[&str], &[&str]) = match known.output_name {
            "li" => (&["li"], &["ul", "ol"]),
            "tr" => (&["tr"], &["table"]),
            "td" | "th" => (&["td", "th"], &["tr", "table"]),
            _ => return,
        };
        let from = self.open.iter().rposition(|open| within.contains(&open.output_name));
        let from = from.map_or(0, |within| within + 1);
        let open = self.open.get(from..).unwrap_or_default();
        if let Some(at) = open.iter().position(|open| siblings.contains(&open.output_name)) {
            self.close_down_to(from + at);
        }
    }

    fn write_start_tag(&mut self, known: &'static markup::ElementSpec, tag: &StartTag<'_>) {
        write(&mut self.page, format_args!("<{}", known.output_name));
        match known.output_name {
            "a" => self.write_link("href", tag.attribute("href")),
            "code" => {
                let class = tag.attribute("class").unwrap_or_default();
                if class.starts_with("language-") {
                    self.write_attribute("class", class);
                }
            }
            _ => {}
        }
        self.page.push('>');
        self.push(known);
    }

    fn write_image(&mut self, tag: &StartTag<'_>) {
        self.page.push_str("<img");
        self.write_attribute("alt", tag.attribute("alt").unwrap_or_default());
        // One that lies in the page itself is no link.
        let source = tag.attribute("src").filter(|source| !source.starts_with("data:"));
        self.write_link("src", source);
        self.page.push('>');
    }

    /// A link, as a URL.
    fn write_link(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value.filter(|value| value.len() <= MAX_LINK_BYTES) else {
            return;
        };
        let url = match self.link_bytes < MAX_TOTAL_LINK_BYTES {
            true => self.base.join(value).ok(),
            false => None,
        };
        match url {
            Some(url) => {
                self.link_bytes += url.as_str().len();
                self.write_attribute(name, url.as_str());
            }
            None => self.write_attribute(name, value),
        }
    }

    fn write_attribute(&mut self, name: &str, value: &str) {
        let value = value.get(..value.floor_char_boundary(MAX_LINK_BYTES * 4)).unwrap_or_default();
        write(&mut self.page, format_args!(" {name}=\""));
        for letter in value.chars() {
            match letter {
                '"' => self.page.push_str("&quot;"),
                '<' => self.page.push_str("&lt;"),
                '\0' => {}
                letter => self.page.push(letter),
            }
        }
        self.page.push('"');
    }

    /// Closes an element with all that is in it, where it is open: for inline ones, in the same block, for
    /// others, in the same cell of a table.
    fn close(&mut self, known: &markup::ElementSpec) {
        // Blocks of code are one piece, however many the page makes of them.
        if known.output_name == "code" && self.is_open("pre") {
            return;
        }
        for (at, open) in self.open.iter().enumerate().rev() {
            let is_it = open.name == known.name
                || open.output_name == BLOCK_ELEMENT && known.output_name == BLOCK_ELEMENT
                || open.kind == ElementKind::Cell && known.kind == ElementKind::Cell;
            if is_it && open.merged_blocks > 0 {
                self.close_down_to(at + 1);
                if let Some(open) = self.open.last_mut() {
                    open.merged_blocks -= 1;
                }
                return self.next_block();
            }
            if is_it {
                return self.close_down_to(at);
            }
            let is_border = if known.kind == ElementKind::Inline {
                open.kind != ElementKind::Inline
            } else {
                open.kind == ElementKind::Cell && !markup::is_table_part(known.output_name)
            };
            if is_border {
                return;
            }
        }
    }

    fn close_down_to(&mut self, depth: usize) {
        for open in self.open.drain(depth..).rev() {
            write(&mut self.page, format_args!("</{}>", open.output_name));
        }
    }

    fn is_open(&self, written: &str) -> bool {
        self.open.iter().any(|open| open.output_name == written)
    }
}

fn write(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _written = page.write_fmt(text);
}

#[cfg(test)]
mod tests;
