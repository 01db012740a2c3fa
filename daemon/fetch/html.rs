//! HTML as Markdown or text. A page may be made to hurt who reads it: elements in elements without end overflow
//! the stack of whoever walks down a tree, and some that are not closed are made anew by parsers in each element
//! that follows. So the parser gets none but what is written here, in one pass over the page: elements that mean
//! something for Markdown, closed in the order in which they were opened, so deep and so many of them at most.

mod tag;

use std::{fmt::Write as _, io, rc::Rc};

use htmd::{HtmlToMarkdown, Node};
use markup5ever_rcdom::NodeData;
use memchr::{memchr, memmem};
use url::Url;

use self::tag::{Kind, Place, Tag};

/// Elements in one another; whatever is deeper is as good as in the deepest of them.
const DEPTH: usize = 48;
/// Elements of a page, each of which takes some hundred bytes. Of the rest, there is the text.
const ELEMENTS: usize = 100_000;
/// Longest URL of a link.
const LONGEST_LINK: usize = 4096;

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

/// Writes the text of a node, which is no deeper than [`plain`] lets it be.
fn write_text(node: &Rc<Node>, text: &mut String, is_verbatim: bool) {
    let mut kind = None;
    let mut is_verbatim = is_verbatim;
    match &node.data {
        NodeData::Text { contents } if is_verbatim => text.push_str(&contents.borrow()),
        NodeData::Text { contents } => {
            for (number, word) in contents.borrow().split_ascii_whitespace().enumerate() {
                let is_apart = number > 0 || contents.borrow().starts_with(is_space);
                if is_apart && !text.is_empty() && !text.ends_with(is_space) {
                    text.push(' ');
                }
                text.push_str(word);
            }
            if contents.borrow().ends_with(is_space)
                && !text.is_empty()
                && !text.ends_with(is_space)
            {
                text.push(' ');
            }
        }
        NodeData::Element { name, .. } => {
            let tag = tag::find(name.local.as_bytes());
            kind = tag.map(|tag| tag.kind);
            is_verbatim |= tag.is_some_and(|tag| tag.written == "pre");
        }
        NodeData::Document
        | NodeData::Doctype { .. }
        | NodeData::Comment { .. }
        | NodeData::ProcessingInstruction { .. } => {}
    }
    let breaks = match kind {
        Some(Kind::Block | Kind::Line | Kind::Rule) => true,
        Some(Kind::Cell | Kind::Inline | Kind::Picture | Kind::Unseen) | None => false,
    };
    if breaks {
        end_line(text);
    }
    for child in node.children.borrow().iter() {
        write_text(child, text, is_verbatim);
    }
    match kind {
        Some(Kind::Block) => end_line(text),
        Some(Kind::Cell) => text.push(' '),
        _ => {}
    }
}

fn end_line(text: &mut String) {
    text.truncate(text.trim_end_matches(' ').len());
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

fn is_space(letter: char) -> bool {
    letter.is_ascii_whitespace()
}

/// The page that the parser gets.
fn plain(page: &str, base: &Url) -> String {
    let mut writer = Writer {
        page: String::with_capacity(page.len()),
        open: Vec::new(),
        elements: 0,
        base,
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
    while let Some(at) = rest
        .get(from..)
        .and_then(|rest| memmem::find(rest.as_bytes(), b"</"))
    {
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
    open: Vec<&'static tag::Known>,
    elements: usize,
    base: &'a Url,
}

impl Writer<'_> {
    /// Writes a text. What stands for a character goes on doing so.
    fn text(&mut self, text: &str) {
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

    fn open(&mut self, known: &'static tag::Known, tag: &Tag<'_>) {
        if self.elements >= ELEMENTS {
            return;
        }
        self.elements += 1;
        match known.kind {
            Kind::Unseen => {}
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
                if self.open.len() < DEPTH {
                    self.begin(known, tag);
                }
            }
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
        let from = self
            .open
            .iter()
            .rposition(|open| within.contains(&open.written));
        let from = from.map_or(0, |within| within + 1);
        let open = self.open.get(from..).unwrap_or_default();
        if let Some(at) = open
            .iter()
            .position(|open| siblings.contains(&open.written))
        {
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
        self.open.push(known);
    }

    fn picture(&mut self, tag: &Tag<'_>) {
        self.page.push_str("<img");
        self.attribute("alt", tag.attribute("alt").unwrap_or_default());
        // One that lies in the page itself is no link.
        let source = tag
            .attribute("src")
            .filter(|source| !source.starts_with("data:"));
        self.link("src", source);
        self.page.push('>');
    }

    /// A link, as a URL.
    fn link(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value.filter(|value| value.len() <= LONGEST_LINK) else {
            return;
        };
        match self.base.join(value) {
            Ok(url) => self.attribute(name, url.as_str()),
            Err(_) => self.attribute(name, value),
        }
    }

    fn attribute(&mut self, name: &str, value: &str) {
        let value = value
            .get(..value.floor_char_boundary(LONGEST_LINK * 4))
            .unwrap_or_default();
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
        for (at, open) in self.open.iter().enumerate().rev() {
            if open.name == known.name {
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
        for known in self.open.drain(depth..).rev() {
            write(&mut self.page, format_args!("</{}>", known.written));
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
