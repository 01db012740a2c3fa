//! Sanitizes HTML and converts it to Markdown or text.
//!
//! Hostile pages can overflow the stack of a recursive walker (deep nesting) or trigger quadratic
//! work in the tree builder (unclosed formatting elements). This module therefore rewrites each
//! page in one pass before the parser sees it. The result contains only elements that matter for
//! Markdown, properly nested, at most [`MAX_ELEMENT_DEPTH`] deep and [`MAX_ELEMENTS`] in total.

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

/// Nesting depth of elements. Deeper content goes into the deepest element. Nested plain blocks
/// count once.
const MAX_ELEMENT_DEPTH: usize = 48;
/// Nesting depth of blocks. Less than [`MAX_ELEMENT_DEPTH`], so that links fit into the deepest
/// block.
const MAX_BLOCK_DEPTH: usize = 40;
/// Element written for blocks without a meaning of their own.
const BLOCK_ELEMENT: &str = "div";
/// Elements of a page. Each takes some hundred bytes. Beyond the limit, only text is written.
const MAX_ELEMENTS: usize = 100_000;
/// Pieces of content inside tables but outside cells. The parser moves each before its table, at a
/// cost that grows with the content already there. Further pieces get a cell of their own.
const MAX_STRAY_TABLE_PIECES: usize = 256;
/// Length of a link. Longer ones are omitted.
const MAX_LINK_BYTES: usize = 4096;
/// Links written as absolute URLs, each of which repeats the base. Further links stay relative.
const MAX_TOTAL_LINK_BYTES: usize = 8 << 20;

/// Converts a page to Markdown, with absolute links.
pub(super) fn markdown(page: &str, base: &Url) -> io::Result<String> {
    HtmlToMarkdown::new().convert(&sanitize(page, base))
}

/// Converts a page to text without markup, one line per block.
pub(super) fn text(page: &str, base: &Url) -> io::Result<String> {
    let tree = HtmlToMarkdown::new().html_to_tree(&sanitize(page, base))?;
    let mut text = String::new();
    write_text(&tree, &mut text, false);
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// Rewrites a page for the parser.
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
                    Some(element) if element.kind == ElementKind::Hidden => {
                        skip_hidden(after, element.output_name)
                    }
                    Some(element) => {
                        writer.open(element, &tag);
                        after
                    }
                    None => after,
                }
            }
            MarkupToken::Close(element, after) => {
                if let Some(element) = element {
                    writer.close(element);
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

/// Returns the text from the end tag of a hidden element on. Empty if there is none.
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

/// Writes the sanitized page, and tracks the open elements.
struct HtmlSanitizer<'a> {
    page: String,
    open: Vec<OpenElement>,
    elements: usize,
    base: Cow<'a, Url>,
    /// Whether the page has set its base URL. Only the first `base` element counts.
    has_base: bool,
    /// Pieces of content in tables but outside cells.
    stray_table_pieces: usize,
    /// Bytes of links written as absolute URLs.
    link_bytes: usize,
}

/// An open element.
#[derive(Debug)]
struct OpenElement {
    element: &'static markup::ElementSpec,
    /// Number of nested plain blocks that this one stands for, in addition to itself. They are
    /// written as adjacent blocks.
    merged_blocks: usize,
    /// For a table: whether it has a row.
    has_rows: bool,
    /// For a row: the element of its cells.
    cells: Option<&'static markup::ElementSpec>,
}

impl Deref for OpenElement {
    type Target = markup::ElementSpec;

    fn deref(&self) -> &markup::ElementSpec {
        self.element
    }
}

impl HtmlSanitizer<'_> {
    /// Writes text. Character references stay as they are.
    fn write_text(&mut self, text: &str) {
        if !text.chars().all(is_space) {
            if self.open.last().is_some_and(|open| open.output_name == "pre") {
                // Preformatted text is code, even if the page does not mark it so.
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
        // NUL is meaningless in HTML, and an error for the parser.
        for piece in text.split('\0') {
            self.page.push_str(piece);
        }
    }

    fn push(&mut self, element: &'static markup::ElementSpec) {
        let mut cells = None;
        let table = self.open.iter_mut().rfind(|open| open.output_name == "table");
        if let Some(table) = table.filter(|_| element.output_name == "tr") {
            cells = markup::find_element(b"td").filter(|_| table.has_rows);
            table.has_rows = true;
        }
        self.open.push(OpenElement { element, merged_blocks: 0, has_rows: false, cells });
    }

    /// Returns the element to write for a cell. In Markdown only the first row can be a header, and
    /// all cells of a row are of one kind.
    fn cell_element(
        &mut self,
        element: &'static markup::ElementSpec,
    ) -> &'static markup::ElementSpec {
        let row = self.open.iter_mut().rfind(|open| open.output_name == "tr");
        row.map_or(element, |row| row.cells.get_or_insert(element))
    }

    /// Opens an element that the page does not have.
    fn open_implied(&mut self, name: &str) {
        if let Some(element) = markup::find_element(name.as_bytes()) {
            write(&mut self.page, format_args!("<{}>", element.output_name));
            self.push(element);
        }
    }

    /// Opens a cell for content in a table but outside cells, except for the first pieces.
    fn ensure_cell(&mut self) {
        let mut open = self.open.iter().rev();
        let parent = open.find(|open| open.kind != ElementKind::Inline);
        let missing: &[&str] = match parent.map(|open| open.output_name) {
            Some("table") => &["tr", "td"],
            Some("tr") => &["td"],
            _ => return,
        };
        self.stray_table_pieces += 1;
        if self.stray_table_pieces > MAX_STRAY_TABLE_PIECES {
            missing.iter().for_each(|name| self.open_implied(name));
        }
    }

    fn open(&mut self, element: &'static markup::ElementSpec, tag: &StartTag<'_>) {
        if element.kind == ElementKind::Base {
            return self.set_base(tag);
        }
        if self.elements >= MAX_ELEMENTS {
            return;
        }
        self.elements += 1;
        if !matches!(element.output_name, "tr" | "td" | "th") {
            self.ensure_cell();
        }

        match element.kind {
            ElementKind::Hidden | ElementKind::Base => {}
            ElementKind::LineBreak if self.is_open("pre") => self.write_text("\n"),
            // Code contains nothing but code.
            ElementKind::Rule | ElementKind::Image if self.is_open("pre") => {}
            ElementKind::Inline if self.is_open("pre") && element.output_name != "code" => {}
            ElementKind::LineBreak | ElementKind::Rule => {
                write(&mut self.page, format_args!("<{}>", element.output_name))
            }
            ElementKind::Image => self.write_image(tag),
            ElementKind::Inline => {
                if element.output_name == "a" {
                    self.close(element);
                }
                if self.open.len() < MAX_ELEMENT_DEPTH && !self.is_open(element.output_name) {
                    self.write_start_tag(element, tag);
                }
            }
            ElementKind::Block | ElementKind::Cell => self.open_block(element, tag),
        }
    }

    fn open_block(&mut self, element: &'static markup::ElementSpec, tag: &StartTag<'_>) {
        if self.is_open("pre") {
            return;
        }
        if self.is_open("a") {
            // A block would end the link before its text.
            self.page.push(' ');
            return;
        }

        let last_block = self.open.iter().rposition(|open| open.kind != ElementKind::Inline);
        self.close_down_to(last_block.map_or(0, |last| last + 1));
        if self.open.last().is_some_and(|open| open.output_name == "p") {
            self.close_down_to(self.open.len() - 1);
        }
        self.close_siblings(element);

        let element =
            if element.kind == ElementKind::Cell { self.cell_element(element) } else { element };
        // The parser moves content out of a table without cells, at some cost. So a table needs
        // room for a row and a cell.
        let needed_depth = match element.output_name {
            "table" => 3,
            "tr" => 2,
            _ => 1,
        };
        let depth = self.open.len() + needed_depth;
        match self.open.last_mut() {
            Some(last)
                if last.output_name == BLOCK_ELEMENT && element.output_name == BLOCK_ELEMENT =>
            {
                last.merged_blocks += 1;
                self.next_block();
            }
            _ if depth <= MAX_BLOCK_DEPTH => self.write_start_tag(element, tag),
            _ => self.break_at_max_depth(element),
        }
    }

    /// Ends a plain block, and begins the next.
    fn next_block(&mut self) {
        if self.page.ends_with("<div>") {
            return; // the block is empty
        }
        write(&mut self.page, format_args!("</{BLOCK_ELEMENT}><{BLOCK_ELEMENT}>"));
    }

    /// Separates the content of an element that is too deep to be written.
    fn break_at_max_depth(&mut self, element: &markup::ElementSpec) {
        let is_cell = element.kind == ElementKind::Cell;
        let separator = if is_cell { " " } else { "<br>" };
        if !self.page.ends_with(separator) {
            self.page.push_str(separator);
        }
    }

    fn set_base(&mut self, tag: &StartTag<'_>) {
        let Some(href) =
            tag.attribute("href").filter(|href| !self.has_base && href.len() <= MAX_LINK_BYTES)
        else {
            return;
        };

        self.has_base = true;
        let url = self.base.join(href).ok();
        if let Some(url) = url.filter(|url| matches!(url.scheme(), "http" | "https")) {
            self.base = Cow::Owned(url);
        }
    }

    /// Closes an open item, row or cell, which the next of its kind ends.
    fn close_siblings(&mut self, element: &markup::ElementSpec) {
        let (siblings, parents): (&[&str], &[&str]) = match element.output_name {
            "li" => (&["li"], &["ul", "ol"]),
            "tr" => (&["tr"], &["table"]),
            "td" | "th" => (&["td", "th"], &["tr", "table"]),
            _ => return,
        };
        let parent = self.open.iter().rposition(|open| parents.contains(&open.output_name));
        let from = parent.map_or(0, |parent| parent + 1);
        let open = self.open.get(from..).unwrap_or_default();
        if let Some(at) = open.iter().position(|open| siblings.contains(&open.output_name)) {
            self.close_down_to(from + at);
        }
    }

    fn write_start_tag(&mut self, element: &'static markup::ElementSpec, tag: &StartTag<'_>) {
        write(&mut self.page, format_args!("<{}", element.output_name));
        match element.output_name {
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
        self.push(element);
    }

    fn write_image(&mut self, tag: &StartTag<'_>) {
        self.page.push_str("<img");
        self.write_attribute("alt", tag.attribute("alt").unwrap_or_default());
        // A `data:` URL contains the image, and links to nothing.
        let source = tag.attribute("src").filter(|source| !source.starts_with("data:"));
        self.write_link("src", source);
        self.page.push('>');
    }

    /// Writes a link, as an absolute URL within the limit.
    fn write_link(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value.filter(|value| value.len() <= MAX_LINK_BYTES) else {
            return;
        };
        let is_within_limit = self.link_bytes < MAX_TOTAL_LINK_BYTES;
        let url = if is_within_limit { self.base.join(value).ok() } else { None };
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

    /// Closes an open element with everything inside it. Inline elements are closed within the same
    /// block, others within the same table cell.
    fn close(&mut self, element: &markup::ElementSpec) {
        // A code block is one piece, however many `code` elements the page has in it.
        if element.output_name == "code" && self.is_open("pre") {
            return;
        }

        for (at, open) in self.open.iter().enumerate().rev() {
            let is_match = open.name == element.name
                || open.output_name == BLOCK_ELEMENT && element.output_name == BLOCK_ELEMENT
                || open.kind == ElementKind::Cell && element.kind == ElementKind::Cell;
            if is_match && open.merged_blocks > 0 {
                self.close_down_to(at + 1);
                if let Some(open) = self.open.last_mut() {
                    open.merged_blocks -= 1;
                }
                return self.next_block();
            }
            if is_match {
                return self.close_down_to(at);
            }
            let is_boundary = if element.kind == ElementKind::Inline {
                open.kind != ElementKind::Inline
            } else {
                open.kind == ElementKind::Cell && !markup::is_table_part(element.output_name)
            };
            if is_boundary {
                return;
            }
        }
    }

    fn close_down_to(&mut self, depth: usize) {
        for open in self.open.drain(depth..).rev() {
            write(&mut self.page, format_args!("</{}>", open.output_name));
        }
    }

    fn is_open(&self, output_name: &str) -> bool {
        self.open.iter().any(|open| open.output_name == output_name)
    }
}

fn write(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _written = page.write_fmt(text);
}

#[cfg(test)]
mod tests;
