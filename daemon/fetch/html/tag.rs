//! Tags of a page: what is at a `<`, and which elements mean something.

use memchr::{memchr, memmem};

/// Longest name of an element that there is: `blockquote`.
const LONGEST_NAME: usize = 10;

/// What an element is for Markdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A part of the page with lines of its own.
    Block,
    /// A cell of a table.
    Cell,
    /// A part of a line.
    Inline,
    /// A break of a line: it holds nothing.
    Line,
    /// A line between parts: it holds nothing.
    Rule,
    /// A picture: it holds nothing.
    Picture,
    /// What links are relative to: it holds nothing.
    Base,
    /// What nobody sees, nor what it holds.
    Unseen,
}

/// An element that means something.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Its name in the page.
    pub(super) name: &'static str,
    /// The name of the element that is written for it.
    pub(super) written: &'static str,
    /// What it is.
    pub(super) kind: Kind,
}

const fn known(kind: Kind, name: &'static str, written: &'static str) -> Known {
    Known { name, written, kind }
}

const KNOWN: &[Known] = &[
    known(Kind::Block, "address", "div"),
    known(Kind::Block, "article", "div"),
    known(Kind::Block, "aside", "div"),
    known(Kind::Block, "blockquote", "blockquote"),
    known(Kind::Block, "center", "div"),
    known(Kind::Block, "dd", "div"),
    known(Kind::Block, "details", "div"),
    known(Kind::Block, "div", "div"),
    known(Kind::Block, "dl", "div"),
    known(Kind::Block, "dt", "div"),
    known(Kind::Block, "fieldset", "div"),
    known(Kind::Block, "figcaption", "div"),
    known(Kind::Block, "figure", "div"),
    known(Kind::Block, "footer", "div"),
    known(Kind::Block, "form", "div"),
    known(Kind::Block, "h1", "h1"),
    known(Kind::Block, "h2", "h2"),
    known(Kind::Block, "h3", "h3"),
    known(Kind::Block, "h4", "h4"),
    known(Kind::Block, "h5", "h5"),
    known(Kind::Block, "h6", "h6"),
    known(Kind::Block, "header", "div"),
    known(Kind::Block, "li", "li"),
    known(Kind::Block, "main", "div"),
    known(Kind::Block, "nav", "div"),
    known(Kind::Block, "ol", "ol"),
    known(Kind::Block, "p", "p"),
    known(Kind::Block, "pre", "pre"),
    known(Kind::Block, "section", "div"),
    known(Kind::Block, "summary", "div"),
    known(Kind::Block, "table", "table"),
    known(Kind::Block, "tr", "tr"),
    known(Kind::Block, "ul", "ul"),
    known(Kind::Cell, "td", "td"),
    known(Kind::Cell, "th", "th"),
    known(Kind::Inline, "a", "a"),
    known(Kind::Inline, "b", "strong"),
    known(Kind::Inline, "code", "code"),
    known(Kind::Inline, "em", "em"),
    known(Kind::Inline, "i", "em"),
    known(Kind::Inline, "kbd", "code"),
    known(Kind::Inline, "samp", "code"),
    known(Kind::Inline, "strong", "strong"),
    known(Kind::Inline, "tt", "code"),
    known(Kind::Line, "br", "br"),
    known(Kind::Rule, "hr", "hr"),
    known(Kind::Picture, "img", "img"),
    known(Kind::Base, "base", "base"),
    known(Kind::Unseen, "iframe", "iframe"),
    known(Kind::Unseen, "math", "math"),
    known(Kind::Unseen, "noembed", "noembed"),
    known(Kind::Unseen, "noframes", "noframes"),
    known(Kind::Unseen, "object", "object"),
    known(Kind::Unseen, "script", "script"),
    known(Kind::Unseen, "style", "style"),
    known(Kind::Unseen, "svg", "svg"),
    known(Kind::Unseen, "template", "template"),
    known(Kind::Unseen, "textarea", "textarea"),
    known(Kind::Unseen, "title", "title"),
];

/// The element of this name, if it means something.
pub(super) fn find(name: &[u8]) -> Option<&'static Known> {
    let mut all = KNOWN.iter().filter(|_| name.len() <= LONGEST_NAME);
    all.find(|known| known.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Whether an element is a table or a part of one.
pub(super) fn is_of_table(written: &str) -> bool {
    matches!(written, "table" | "tr" | "td" | "th")
}

/// What is at a `<`, and where it ends.
#[derive(Debug)]
pub(super) enum Place<'a> {
    /// A character as others.
    Text,
    /// What is no part of the content.
    Comment(usize),
    /// The beginning of an element.
    Open(Tag<'a>, usize),
    /// The end of one, if it means something.
    Close(Option<&'static Known>, usize),
    /// Something that does not end: all that comes is part of it.
    Nothing,
}

/// The tag that an element begins with.
#[derive(Debug)]
pub(super) struct Tag<'a> {
    /// The element, if it means something.
    pub(super) known: Option<&'static Known>,
    /// Its attributes, as they are written.
    attributes: &'a str,
}

impl<'a> Place<'a> {
    /// What is at the `<` that `rest` begins with.
    pub(super) fn of(rest: &'a str) -> Self {
        let bytes = rest.as_bytes();
        let next = |at: usize| bytes.get(at).copied().unwrap_or_default();
        let end = |found: Option<usize>, length: usize| match found {
            Some(at) => Self::Comment(at + length),
            None => Self::Nothing,
        };
        match next(1) {
            b'!' if rest.starts_with("<!--") => {
                // `<!-->` is whole.
                let found = memmem::find(bytes.get(2..).unwrap_or_default(), b"-->");
                end(found, 5)
            }
            b'!' | b'?' => end(memchr(b'>', bytes), 1),
            b'/' if next(2).is_ascii_alphabetic() => match Self::end_of_tag(bytes) {
                Some(after) => Self::Close(find(name(bytes, 2)), after),
                None => Self::Nothing,
            },
            b'/' => end(memchr(b'>', bytes), 1),
            letter if letter.is_ascii_alphabetic() => match Self::end_of_tag(bytes) {
                Some(after) => {
                    let name = name(bytes, 1);
                    let attributes = rest.get(1 + name.len()..after - 1).unwrap_or_default();
                    let known = find(name);
                    Self::Open(Tag { known, attributes }, after)
                }
                None => Self::Nothing,
            },
            _ => Self::Text,
        }
    }

    /// Where the tag at the beginning ends: at the first `>` that is in no quotes.
    fn end_of_tag(bytes: &[u8]) -> Option<usize> {
        let mut quote = None;
        let mut before = b' ';
        for (at, byte) in bytes.iter().copied().enumerate() {
            match (quote, byte) {
                (None, b'>') => return Some(at + 1),
                // Elsewhere, one is a letter as others.
                (None, b'"' | b'\'') if before == b'=' => quote = Some(byte),
                (Some(open), byte) if open == byte => quote = None,
                _ => {}
            }
            if !byte.is_ascii_whitespace() {
                before = byte;
            }
        }
        None
    }
}

impl<'a> Tag<'a> {
    /// The value of an attribute, as it is written.
    pub(super) fn attribute(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.attributes;
        loop {
            rest = rest
                .trim_start_matches(|letter: char| letter.is_ascii_whitespace() || letter == '/');
            if rest.is_empty() {
                return None;
            }
            let end = rest
                .find(|letter: char| letter.is_ascii_whitespace() || matches!(letter, '=' | '/'));
            // A `=` in front is part of the name.
            let end = end.unwrap_or(rest.len()).max(1);
            let end = rest.ceil_char_boundary(end);
            let (own, after) = rest.split_at(end);
            let after = after.trim_start_matches(|letter: char| letter.is_ascii_whitespace());
            let Some(value) = after.strip_prefix('=') else {
                if own.eq_ignore_ascii_case(name) {
                    return Some("");
                }
                rest = after;
                continue;
            };
            let value = value.trim_start_matches(|letter: char| letter.is_ascii_whitespace());
            let (value, after) = match value.chars().next() {
                Some(quote @ ('"' | '\'')) => {
                    let inner = value.get(1..).unwrap_or_default();
                    inner.split_once(quote).unwrap_or((inner, ""))
                }
                _ => {
                    let end = value.find(|letter: char| letter.is_ascii_whitespace());
                    value.split_at(end.unwrap_or(value.len()))
                }
            };
            if own.eq_ignore_ascii_case(name) {
                return Some(value.trim());
            }
            rest = after;
        }
    }
}

/// The name of the element whose tag begins so.
fn name(bytes: &[u8], from: usize) -> &[u8] {
    let name = bytes.get(from..).unwrap_or_default();
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'>' | b'/');
    let length = name.iter().position(ends).unwrap_or(name.len());
    name.get(..length).unwrap_or_default()
}
