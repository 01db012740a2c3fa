//! Extracts the text of a parsed page, one line per block.

use std::rc::Rc;

use htmd::Node;
use markup5ever_rcdom::NodeData;

use super::markup::{self, ElementKind};

/// Writes the text of a node and its children. The sanitizer limits the depth of the recursion.
pub(super) fn write_text(node: &Rc<Node>, text: &mut String, is_verbatim: bool) {
    let mut kind = None;
    let mut is_verbatim = is_verbatim;
    match &node.data {
        NodeData::Text { contents } if is_verbatim => text.push_str(&contents.borrow()),
        NodeData::Text { contents } => {
            for (number, word) in contents.borrow().split_ascii_whitespace().enumerate() {
                let has_space = number > 0 || contents.borrow().starts_with(is_space);
                if has_space && !text.is_empty() && !text.ends_with(is_space) {
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
            let tag = markup::find_element(name.local.as_bytes());
            kind = tag.map(|tag| tag.kind);
            is_verbatim |= tag.is_some_and(|tag| tag.output_name == "pre");
        }
        NodeData::Document
        | NodeData::Doctype { .. }
        | NodeData::Comment { .. }
        | NodeData::ProcessingInstruction { .. } => {}
    }

    let starts_line = match kind {
        Some(ElementKind::Block | ElementKind::LineBreak | ElementKind::Rule) => true,
        Some(
            ElementKind::Cell
            | ElementKind::Inline
            | ElementKind::Image
            | ElementKind::Base
            | ElementKind::Hidden,
        )
        | None => false,
    };
    if starts_line {
        ensure_newline(text);
    }
    for child in node.children.borrow().iter() {
        write_text(child, text, is_verbatim);
    }
    match kind {
        Some(ElementKind::Block) => ensure_newline(text),
        Some(ElementKind::Cell) => text.push(' '),
        _ => {}
    }
}

fn ensure_newline(text: &mut String) {
    text.truncate(text.trim_end_matches(' ').len());
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

/// Whether HTML treats the character as white space.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_ascii_whitespace()
}
