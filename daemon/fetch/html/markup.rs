//! Tags of a page: what is at a `<`, and which elements mean something.

use memchr::{memchr, memmem};

/// Longest name of an element that there is: `blockquote`.
const MAX_NAME_BYTES: usize = 10;

/// What an element is for Markdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementKind {
    /// A part of the page with lines of its own.
    Block,
    /// A cell of a table.
    Cell,
    /// A part of a line.
    Inline,
    /// A break of a line: it holds nothing.
    LineBreak,
    /// A line between parts: it holds nothing.
    Rule,
    /// A picture: it holds nothing.
    Image,
    /// What links are relative to: it holds nothing.
    Base,
    /// What nobody sees, nor what it holds.
    Hidden,
}

/// An element that means something.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ElementSpec {
    /// Its name in the page.
    pub(super) name: &'static str,
    /// The name of the element that is written for it.
    pub(super) output_name: &'static str,
    /// What it is.
    pub(super) kind: ElementKind,
}

const fn element(kind: ElementKind, name: &'static str, written: &'static str) -> ElementSpec {
    ElementSpec { name, output_name: written, kind }
}

const KNOWN_ELEMENTS: &[ElementSpec] = &[
    element(ElementKind::Block, "address", "div"),
    element(ElementKind::Block, "article", "div"),
    element(ElementKind::Block, "aside", "div"),
    element(ElementKind::Block, "blockquote", "blockquote"),
    element(ElementKind::Block, "center", "div"),
    element(ElementKind::Block, "dd", "div"),
    element(ElementKind::Block, "details", "div"),
    element(ElementKind::Block, "div", "div"),
    element(ElementKind::Block, "dl", "div"),
    element(ElementKind::Block, "dt", "div"),
    element(ElementKind::Block, "fieldset", "div"),
    element(ElementKind::Block, "figcaption", "div"),
    element(ElementKind::Block, "figure", "div"),
    element(ElementKind::Block, "footer", "div"),
    element(ElementKind::Block, "form", "div"),
    element(ElementKind::Block, "h1", "h1"),
    element(ElementKind::Block, "h2", "h2"),
    element(ElementKind::Block, "h3", "h3"),
    element(ElementKind::Block, "h4", "h4"),
    element(ElementKind::Block, "h5", "h5"),
    element(ElementKind::Block, "h6", "h6"),
    element(ElementKind::Block, "header", "div"),
    element(ElementKind::Block, "li", "li"),
    element(ElementKind::Block, "main", "div"),
    element(ElementKind::Block, "nav", "div"),
    element(ElementKind::Block, "ol", "ol"),
    element(ElementKind::Block, "p", "p"),
    element(ElementKind::Block, "pre", "pre"),
    element(ElementKind::Block, "section", "div"),
    element(ElementKind::Block, "summary", "div"),
    element(ElementKind::Block, "table", "table"),
    element(ElementKind::Block, "tr", "tr"),
    element(ElementKind::Block, "ul", "ul"),
    element(ElementKind::Cell, "td", "td"),
    element(ElementKind::Cell, "th", "th"),
    element(ElementKind::Inline, "a", "a"),
    element(ElementKind::Inline, "b", "strong"),
    element(ElementKind::Inline, "code", "code"),
    element(ElementKind::Inline, "em", "em"),
    element(ElementKind::Inline, "i", "em"),
    element(ElementKind::Inline, "kbd", "code"),
    element(ElementKind::Inline, "samp", "code"),
    element(ElementKind::Inline, "strong", "strong"),
    element(ElementKind::Inline, "tt", "code"),
    element(ElementKind::LineBreak, "br", "br"),
    element(ElementKind::Rule, "hr", "hr"),
    element(ElementKind::Image, "img", "img"),
    element(ElementKind::Base, "base", "base"),
    element(ElementKind::Hidden, "iframe", "iframe"),
    element(ElementKind::Hidden, "math", "math"),
    element(ElementKind::Hidden, "noembed", "noembed"),
    element(ElementKind::Hidden, "noframes", "noframes"),
    element(ElementKind::Hidden, "object", "object"),
    element(ElementKind::Hidden, "script", "script"),
    element(ElementKind::Hidden, "style", "style"),
    element(ElementKind::Hidden, "svg", "svg"),
    element(ElementKind::Hidden, "template", "template"),
    element(ElementKind::Hidden, "textarea", "textarea"),
    element(ElementKind::Hidden, "title", "title"),
];

/// The element of this name, if it means something.
pub(super) fn find_element(name: &[u8]) -> Option<&'static ElementSpec> {
    let mut all = KNOWN_ELEMENTS.iter().filter(|_| name.len() <= MAX_NAME_BYTES);
    all.find(|known| known.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Whether an element is a table or a part of one.
pub(super) fn is_table_part(written: &str) -> bool {
    matches!(written, "table" | "tr" | "td" | "th")
}

/// What is at a `<`, and where it ends.
#[derive(Debug)]
pub(super) enum MarkupToken<'a> {
    /// A character as others.
    Text,
    /// What is no part of the content.
    Comment(usize),
    /// The beginning of an element.
    Open(StartTag<'a>, usize),
    /// The end of one, if it means something.
    Close(Option<&'static ElementSpec>, usize),
    /// Something that does not end: all that comes is part of it.
    Unterminated,
}

/// The tag that an element begins with.
#[derive(Debug)]
pub(super) struct StartTag<'a> {
    /// The element, if it means something.
    pub(super) element: Option<&'static ElementSpec>,
    /// Its attributes, as they are written.
    attributes: &'a str,
}

impl<'a> MarkupToken<'a> {
    /// What is at the `<` that `rest` begins with.
    pub(super) fn parse(rest: &'a str) -> Self {
        let bytes = rest.as_bytes();
        let next = |at: usize| bytes.get(at).copied().unwrap_or_default();
        let end = |found: Option<usize>, length: usize| match found {
            Some(at) => Self::Comment(at + length),
            None => Self::Unterminated,
        };
        match next(1) {
            b'!' if rest.starts_with("<!--") => {
                // `<!-->` is whole.
                let found = memmem::find(bytes.get(2..).unwrap_or_default(), b"-->");
                end(found, 5)
            }
            b'!' | b'?' => end(memchr(b'>', bytes), 1),
            b'/' if next(2).is_ascii_alphabetic() => match Self::end_of_tag(bytes) {
                Some(after) => Self::Close(find_element(tag_name(bytes, 2)), after),
                None => Self::Unterminated,
            },
            b'/' => end(memchr(b'>', bytes), 1),
            letter if letter.is_ascii_alphabetic() => match Self::end_of_tag(bytes) {
                Some(after) => {
                    let name = tag_name(bytes, 1);
                    let attributes = rest.get(1 + name.len()..after - 1).unwrap_or_default();
                    let known = find_element(name);
                    Self::Open(StartTag { element: known, attributes }, after)
                }
                None => Self::Unterminated,
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

impl<'a> StartTag<'a> {
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
fn tag_name(bytes: &[u8], from: usize) -> &[u8] {
    let name = bytes.get(from..).unwrap_or_default();
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'>' | b'/');
    let length = name.iter().position(ends).unwrap_or(name.len());
    name.get(..length).unwrap_or_default()
}
