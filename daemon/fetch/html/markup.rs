//! Tokenizes HTML tags, and lists the elements that matter for Markdown.

use memchr::{memchr, memmem};

/// Length of the longest known element name, `blockquote`.
const MAX_NAME_BYTES: usize = 10;

/// The role of an element in Markdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementKind {
    /// A block with lines of its own.
    Block,
    /// A cell of a table.
    Cell,
    /// A part of a line.
    Inline,
    /// A line break, without content.
    LineBreak,
    /// A horizontal rule, without content.
    Rule,
    /// An image, without content.
    Image,
    /// The base URL of links, without content.
    Base,
    /// An element that is dropped with its content.
    Hidden,
}

/// A known element.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ElementSpec {
    /// Name in the page.
    pub(super) name: &'static str,
    /// Name of the element that is written for it.
    pub(super) output_name: &'static str,
    pub(super) kind: ElementKind,
}

const fn element(kind: ElementKind, name: &'static str, output_name: &'static str) -> ElementSpec {
    ElementSpec { name, output_name, kind }
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

/// Returns the known element with this name, in any case.
pub(super) fn find_element(name: &[u8]) -> Option<&'static ElementSpec> {
    let mut elements = KNOWN_ELEMENTS.iter().filter(|_| name.len() <= MAX_NAME_BYTES);
    elements.find(|element| element.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Whether an element is a table or a part of one.
pub(super) fn is_table_part(output_name: &str) -> bool {
    matches!(output_name, "table" | "tr" | "td" | "th")
}

/// A token that begins with `<`. Each number is the offset of its end.
#[derive(Debug)]
pub(super) enum MarkupToken<'a> {
    /// A literal `<`.
    Text,
    /// A comment, declaration or processing instruction.
    Comment(usize),
    Open(StartTag<'a>, usize),
    /// The end tag of an element, if it is a known one.
    Close(Option<&'static ElementSpec>, usize),
    /// A token without an end. It includes the rest of the page.
    Unterminated,
}

/// A start tag.
#[derive(Debug)]
pub(super) struct StartTag<'a> {
    /// `None` for an unknown element.
    pub(super) element: Option<&'static ElementSpec>,
    /// Source text of the attributes.
    attributes: &'a str,
}

impl<'a> MarkupToken<'a> {
    /// Parses the token at the start of `rest`, which begins with `<`.
    pub(super) fn parse(rest: &'a str) -> Self {
        let bytes = rest.as_bytes();
        let next = |at: usize| bytes.get(at).copied().unwrap_or_default();
        let end = |found: Option<usize>, length: usize| match found {
            Some(at) => Self::Comment(at + length),
            None => Self::Unterminated,
        };
        match next(1) {
            b'!' if rest.starts_with("<!--") => {
                // `<!-->` is a complete comment.
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
                    Self::Open(StartTag { element: find_element(name), attributes }, after)
                }
                None => Self::Unterminated,
            },
            _ => Self::Text,
        }
    }

    /// Returns the end of a tag: the offset after the first `>` outside quotes.
    fn end_of_tag(bytes: &[u8]) -> Option<usize> {
        let mut quote = None;
        let mut before = b' ';
        for (at, byte) in bytes.iter().copied().enumerate() {
            match (quote, byte) {
                (None, b'>') => return Some(at + 1),
                // A quote begins a value only after `=`.
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
    /// Returns the value of an attribute, with its character references.
    pub(super) fn attribute(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.attributes;
        loop {
            rest = rest
                .trim_start_matches(|letter: char| letter.is_ascii_whitespace() || letter == '/');
            if rest.is_empty() {
                return None;
            }

            // A leading `=` is part of the name.
            let end = rest
                .find(|letter: char| letter.is_ascii_whitespace() || matches!(letter, '=' | '/'))
                .unwrap_or(rest.len())
                .max(1);
            let (attribute, after) = rest.split_at(rest.ceil_char_boundary(end));
            let after = after.trim_start_matches(|letter: char| letter.is_ascii_whitespace());
            let Some(value) = after.strip_prefix('=') else {
                if attribute.eq_ignore_ascii_case(name) {
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

            if attribute.eq_ignore_ascii_case(name) {
                return Some(value.trim());
            }
            rest = after;
        }
    }
}

/// Returns the element name that begins at `from`.
fn tag_name(bytes: &[u8], from: usize) -> &[u8] {
    let name = bytes.get(from..).unwrap_or_default();
    let ends_name = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'>' | b'/');
    let length = name.iter().position(ends_name).unwrap_or(name.len());
    name.get(..length).unwrap_or_default()
}
