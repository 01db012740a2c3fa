//! The comments of the protos, as models read them: what an RPC does, and what a field means.

use std::collections::HashMap;

use prost_reflect::{DescriptorPool, FieldDescriptor, MethodDescriptor};

/// Comments by the file and the path of what they stand before (`SourceCodeInfo.Location.path`).
#[derive(Debug)]
pub(super) struct ProtoComments(HashMap<(String, Vec<i32>), String>);

impl ProtoComments {
    /// Reads all of them.
    pub(super) fn from_pool(pool: &DescriptorPool) -> Self {
        let mut comments = HashMap::new();
        for file in pool.file_descriptor_protos() {
            for location in file.source_code_info.iter().flat_map(|info| &info.location) {
                let Some(comment) = &location.leading_comments else {
                    continue;
                };
                let place = (file.name().to_owned(), location.path.clone());
                comments.insert(place, reflow(comment));
            }
        }
        Self(comments)
    }

    /// What a field means.
    pub(super) fn field(&self, field: &FieldDescriptor) -> &str {
        self.lookup(field.parent_file().name(), field.path())
    }

    /// What an RPC does.
    pub(super) fn method(&self, method: &MethodDescriptor) -> &str {
        self.lookup(method.parent_file().name(), method.path())
    }

    fn lookup(&self, file: &str, path: &[i32]) -> &str {
        let place = (file.to_owned(), path.to_vec());
        self.0.get(&place).map_or("", String::as_str)
    }
}

/// The first sentence of a comment: what is behind it is for people who write programs.
pub(super) fn first_sentence(comment: &str) -> &str {
    let end = comment.find(". ").map_or(comment.len(), |at| at + 1);
    let paragraph = comment.find("\n\n").unwrap_or(comment.len());
    comment.get(..end.min(paragraph)).unwrap_or(comment)
}

/// A comment without the line breaks that its width made: those between paragraphs and before the points
/// of a list stay.
fn reflow(comment: &str) -> String {
    let mut flowing = String::with_capacity(comment.len());
    for line in comment.trim().lines().map(str::trim) {
        let separator = match line {
            "" => "\n\n",
            _ if flowing.ends_with('\n') || flowing.is_empty() => "",
            _ if line.starts_with("* ") => "\n",
            _ => " ",
        };
        if separator != "\n\n" || !flowing.ends_with('\n') {
            flowing.push_str(separator);
        }
        flowing.push_str(line);
    }
    flowing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_flow() {
        assert_eq!(
            reflow(" One\n two.\n\n\n Errors:\n * a\n   b\n * c\n"),
            "One two.\n\nErrors:\n* a b\n* c"
        );
        for (comment, first) in
            [("One `a.b`. Two.", "One `a.b`."), ("One\n\nTwo. Three.", "One"), ("One.", "One.")]
        {
            assert_eq!(first_sentence(comment), first);
        }
    }
}
