//! HTML as Markdown or text. A page may be made to hurt who reads it: elements in elements without end overflow
//! the stack of whoever walks down a tree, and some that are not closed are made anew by parsers in each element
//! that follows. So the parser gets none but what is written here, in one pass over the page: elements that mean
//! something for Markdown, closed in the order in which they were opened, so deep and so many of them at most.

mod lines;
mod tag;

use std::{borrow::Cow, fmt::Write as _, io, ops::Deref};

use htmd::HtmlToMarkdown;
use memchr::{memchr, memmem};
use url::Url;

use self::{
    lines::{is_space, write_text},
    tag::{Kind, Place, Tag},
};

/// Elements in one another; whatever is deeper is as good as in the deepest of them. Parts that are nothing but
/// parts do not count.
const DEPTH: usize = 48;
/// Blocks in one another: what they hold has room for links.
const BLOCKS: usize = 40;
/// What is written for a block that means nothing but lines of its own.
const PART: &str = "div";
/// Elements of a page, each of which takes some hundred bytes. Of the rest, there is the text.
const ELEMENTS: usize = 100_000;
/// Pieces of a page in its tables that are in none of their cells. A parser puts each before its table, at a cost that
/// grows with what is there already; the rest is given cells.
const OUTSIDE: usize = 256;
/// Longest URL of a link.
const LONGEST_LINK: usize = 4096;
/// Bytes of links that are written as whole URLs: each has what it is relative to in it. The rest is as it was given.
const LINKS: usize = 8 << 20;

/// A page as Markdown, its links as URLs.
pub(super) fn markdown(page: &str, base: &Url) -> io::Result<String> {
    HtmlToMarkdown::new().convert(&plain(page, base))
}

/// The text of a page: a line for each of its parts, and no markup.
pub(super) fn text(page: &str, base: &Url) -> io::Result<String> {
    let tree = HtmlToMarkdown::new().html_to_tree(&plain(page, base))?;
    let mut text = String::new();
    write_text(&tree, &mut text, false);
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// The page that the parser gets.
fn plain(page: &str, base: &Url) -> String {
    let mut writer = Writer {
        page: String::with_capacity(page.len()),
        open: Vec::new(),
        elements: 0,
        base: Cow::Borrowed(base),
        has_base: false,
        outside: 0,
        links: 0,
    };
    let mut rest = page;
    while let Some(at) = memchr(b'<', rest.as_bytes()) {
        writer.text(rest.get(..at).unwrap_or_default());
        rest = rest.get(at..).unwrap_or_default();
        rest = match Place::of(rest) {
            Place::Text => {
                writer.text("<");
                rest.get(1..).unwrap_or_default()
            }
            Place::Comment(end) => rest.get(end..).unwrap_or_default(),
            Place::Open(tag, after) => {
                let after = rest.get(after..).unwrap_or_default();
                match tag.known {
                    Some(known) if known.kind == Kind::Unseen => behind(after, known.written),
                    Some(known) => {
                        writer.open(known, &tag);
                        after
                    }
                    None => after,
                }
            }
            Place::Close(known, after) => {
                if let Some(known) = known {
                    writer.close(known);
                }
                rest.get(after..).unwrap_or_default()
            }
            Place::Nothing => "",
        };
    }
    writer.text(rest);
    writer.close_down_to(0);
    writer.page
}

/// What comes behind an element whose content is not to be seen; nothing where it has no end.
fn behind<'a>(rest: &'a str, name: &str) -> &'a str {
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

struct Writer<'a> {
    page: String,
    open: Vec<Open>,
    elements: usize,
    base: Cow<'a, Url>,
    /// Whether the page has said what its links are relative to: the first word counts.
    has_base: bool,
    /// Pieces that were in a table, and in no cell.
    outside: usize,
    /// Bytes of links that were written as whole URLs.
    links: usize,
}

/// An element that was begun.
#[derive(Debug)]
struct Open {
    known: &'static tag::Known,
    /// How many parts it stands for beside the first: parts in parts are parts one after the other.
    more: usize,
    /// Of a table, whether it has a row.
    has_rows: bool,
    /// Of a row, what its cells are.
    cells: Option<&'static tag::Known>,
}

impl Deref for Open {
    type Target = tag::Known;

    fn deref(&self) -> &tag::Known {
        self.known
    }
}

impl Writer<'_> {
    /// Writes a text. What stands for a character goes on doing so.
    fn text(&mut self, text: &str) {
        if !text.chars().all(is_space) {
            if self.open.last().is_some_and(|open| open.written == "pre") {
                // It is code, also where the page does not say so: it is written as it is.
                self.imply("code");
            }
            self.keep_in_cell();
        }
        let mut pieces = text.split('<');
        self.escaped(pieces.next().unwrap_or_default());
        for piece in pieces {
            self.page.push_str("&lt;");
            self.escaped(piece);
        }
    }

    fn escaped(&mut self, text: &str) {
        // NUL is nothing to a parser but a cause of errors.
        for piece in text.split('\0') {
            self.page.push_str(piece);
        }
    }

    fn push(&mut self, known: &'static tag::Known) {
        let mut cells = None;
        let table = self.open.iter_mut().rfind(|open| open.written == "table");
        if let Some(table) = table.filter(|_| known.written == "tr") {
            cells = tag::find(b"td").filter(|_| table.has_rows);
            table.has_rows = true;
        }
        self.open.push(Open { known, more: 0, has_rows: false, cells });
    }

    /// What a cell is written as: in Markdown the first row is the head of its table or none is, and no row has cells
    /// of both kinds.
    fn cell(&mut self, known: &'static tag::Known) -> &'static tag::Known {
        let row = self.open.iter_mut().rfind(|open| open.written == "tr");
        row.map_or(known, |row| row.cells.get_or_insert(known))
    }

    /// Begins an element that the page does not have.
    fn imply(&mut self, name: &str) {
        if let Some(known) = tag::find(name.as_bytes()) {
            write(&mut self.page, format_args!("<{}>", known.written));
            self.push(known);
        }
    }

    /// Gives what comes a cell, where it is in a table, in none, and not among the first to be so.
    fn keep_in_cell(&mut self) {
        let mut open = self.open.iter().rev();
        let within = open.find(|open| open.kind != Kind::Inline);
        let missing: &[&str] = match within.map(|open| open.written) {
            Some("table") => &["tr", "td"],
            Some("tr") => &["td"],
            _ => return,
        };
        self.outside += 1;
        if self.outside > OUTSIDE {
            missing.iter().for_each(|name| self.imply(name));
        }
    }

    fn open(&mut self, known: &'static tag::Known, tag: &Tag<'_>) {
        if known.kind == Kind::Base {
            return self.found_base(tag);
        }
        if self.elements >= ELEMENTS {
            return;
        }
        self.elements += 1;
        if !matches!(known.written, "tr" | "td" | "th") {
            self.keep_in_cell();
        }
        match known.kind {
            Kind::Unseen | Kind::Base => {}
            Kind::Line if self.is_open("pre") => self.text("\n"),
            // There is nothing but code in code.
            Kind::Rule | Kind::Picture if self.is_open("pre") => {}
            Kind::Inline if self.is_open("pre") && known.written != "code" => {}
            Kind::Line | Kind::Rule => write(&mut self.page, format_args!("<{}>", known.written)),
            Kind::Picture => self.picture(tag),
            Kind::Inline => {
                if known.written == "a" {
                    self.close(known);
                }
                let is_open = self.open.iter().any(|open| open.written == known.written);
                if self.open.len() < DEPTH && !is_open {
                    self.begin(known, tag);
                }
            }
            Kind::Block | Kind::Cell => {
                if self.is_open("pre") {
                    return;
                }
                if self.is_open("a") {
                    // The link is to keep its text.
                    self.page.push(' ');
                    return;
                }
                let blocks = self.open.iter().rposition(|open| open.kind != Kind::Inline);
                self.close_down_to(blocks.map_or(0, |last| last + 1));
                if self.open.last().is_some_and(|open| open.written == "p") {
                    self.close_down_to(self.open.len() - 1);
                }
                self.close_siblings(known);
                let known = match known.kind == Kind::Cell {
                    true => self.cell(known),
                    false => known,
                };
                // A table without a cell throws out what it holds, at some cost.
                let needed = match known.written {
                    "table" => 3,
                    "tr" => 2,
                    _ => 1,
                };
                let depth = self.open.len() + needed;
                match self.open.last_mut() {
                    Some(last) if last.written == PART && known.written == PART => {
                        last.more += 1;
                        self.next_part();
                    }
                    _ if depth <= BLOCKS => self.begin(known, tag),
                    _ => self.end_of_deepest(known),
                }
            }
        }
    }

    /// Ends a part, and begins another.
    fn next_part(&mut self) {
        if self.page.ends_with("<div>") {
            return; // there is nothing in this one
        }
        write(&mut self.page, format_args!("</{PART}><{PART}>"));
    }

    /// What is too deep to be an element is at least apart from what is around it.
    fn end_of_deepest(&mut self, known: &tag::Known) {
        let is_cell = known.kind == Kind::Cell;
        let between = if is_cell { " " } else { "<br>" };
        if !self.page.ends_with(between) {
            self.page.push_str(between);
        }
    }

    fn found_base(&mut self, tag: &Tag<'_>) {
        let given = tag.attribute("href").filter(|_| !self.has_base);
        let Some(given) = given.filter(|given| given.len() <= LONGEST_LINK) else {
            return;
        };
        self.has_base = true;
        let found = self.base.join(given).ok();
        if let Some(url) = found.filter(|url| matches!(url.scheme(), "http" | "https")) {
            self.base = Cow::Owned(url);
        }
    }

    /// Closes what the next of its kind closes: an item, a row, a cell.
    fn close_siblings(&mut self, known: &tag::Known) {
        let (siblings, within): (&[&str], &[&str]) = match known.written {
            "li" => (&["li"], &["ul", "ol"]),
            "tr" => (&["tr"], &["table"]),
            "td" | "th" => (&["td", "th"], &["tr", "table"]),
            _ => return,
        };
        let from = self.open.iter().rposition(|open| within.contains(&open.written));
        let from = from.map_or(0, |within| within + 1);
        let open = self.open.get(from..).unwrap_or_default();
        if let Some(at) = open.iter().position(|open| siblings.contains(&open.written)) {
            self.close_down_to(from + at);
        }
    }

    fn begin(&mut self, known: &'static tag::Known, tag: &Tag<'_>) {
        write(&mut self.page, format_args!("<{}", known.written));
        match known.written {
            "a" => self.link("href", tag.attribute("href")),
            "code" => {
                let class = tag.attribute("class").unwrap_or_default();
                if class.starts_with("language-") {
                    self.attribute("class", class);
                }
            }
            _ => {}
        }
        self.page.push('>');
        self.push(known);
    }

    fn picture(&mut self, tag: &Tag<'_>) {
        self.page.push_str("<img");
        self.attribute("alt", tag.attribute("alt").unwrap_or_default());
        // One that lies in the page itself is no link.
        let source = tag.attribute("src").filter(|source| !source.starts_with("data:"));
        self.link("src", source);
        self.page.push('>');
    }

    /// A link, as a URL.
    fn link(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value.filter(|value| value.len() <= LONGEST_LINK) else {
            return;
        };
        let url = match self.links < LINKS {
            true => self.base.join(value).ok(),
            false => None,
        };
        match url {
            Some(url) => {
                self.links += url.as_str().len();
                self.attribute(name, url.as_str());
            }
            None => self.attribute(name, value),
        }
    }

    fn attribute(&mut self, name: &str, value: &str) {
        let value = value.get(..value.floor_char_boundary(LONGEST_LINK * 4)).unwrap_or_default();
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
    fn close(&mut self, known: &tag::Known) {
        // Blocks of code are one piece, however many the page makes of them.
        if known.written == "code" && self.is_open("pre") {
            return;
        }
        for (at, open) in self.open.iter().enumerate().rev() {
            let is_it = open.name == known.name
                || open.written == PART && known.written == PART
                || open.kind == Kind::Cell && known.kind == Kind::Cell;
            if is_it && open.more > 0 {
                self.close_down_to(at + 1);
                if let Some(open) = self.open.last_mut() {
                    open.more -= 1;
                }
                return self.next_part();
            }
            if is_it {
                return self.close_down_to(at);
            }
            let is_border = if known.kind == Kind::Inline {
                open.kind != Kind::Inline
            } else {
                open.kind == Kind::Cell && !tag::is_of_table(known.written)
            };
            if is_border {
                return;
            }
        }
    }

    fn close_down_to(&mut self, depth: usize) {
        for open in self.open.drain(depth..).rev() {
            write(&mut self.page, format_args!("</{}>", open.written));
        }
    }

    fn is_open(&self, written: &str) -> bool {
        self.open.iter().any(|open| open.written == written)
    }
}

fn write(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _written = page.write_fmt(text);
}

#[cfg(test)]
mod tests;
