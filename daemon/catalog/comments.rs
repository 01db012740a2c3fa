//! The comments of the protos: what an RPC does and what a field means, for models.

use std::collections::HashMap;

use prost_reflect::{
    DescriptorPool, FieldDescriptor, MessageDescriptor, MethodDescriptor, ServiceDescriptor,
};

/// Comments by file and by path of the commented element (`SourceCodeInfo.Location.path`).
#[derive(Debug)]
pub(super) struct ProtoComments(HashMap<(String, Vec<i32>), String>);

impl ProtoComments {
    pub(super) fn from_pool(pool: &DescriptorPool) -> Self {
        let mut comments = HashMap::new();
        for file in pool.file_descriptor_protos() {
            for location in file.source_code_info.iter().flat_map(|info| &info.location) {
                let Some(comment) = &location.leading_comments else {
                    continue;
                };
                let key = (file.name().to_owned(), location.path.clone());
                comments.insert(key, reflow(comment));
            }
        }
        Self(comments)
    }

    pub(super) fn service(&self, service: &ServiceDescriptor) -> &str {
        self.lookup(service.parent_file().name(), service.path())
    }

    pub(super) fn message(&self, message: &MessageDescriptor) -> &str {
        self.lookup(message.parent_file().name(), message.path())
    }

    pub(super) fn field(&self, field: &FieldDescriptor) -> &str {
        self.lookup(field.parent_file().name(), field.path())
    }

    pub(super) fn method(&self, method: &MethodDescriptor) -> &str {
        self.lookup(method.parent_file().name(), method.path())
    }

    fn lookup(&self, file: &str, path: &[i32]) -> &str {
        let key = (file.to_owned(), path.to_vec());
        self.0.get(&key).map_or("", String::as_str)
    }
}

/// The first sentence of a comment. The rest is for programmers.
pub(super) fn first_sentence(comment: &str) -> &str {
    let end = comment.find(". ").map_or(comment.len(), |at| at + 1);
    let paragraph = comment.find("\n\n").unwrap_or(comment.len());
    comment.get(..end.min(paragraph)).unwrap_or(comment)
}

/// Joins the lines of each paragraph and list item of a comment.
fn reflow(comment: &str) -> String {
    let mut text = String::with_capacity(comment.len());
    for line in comment.trim().lines().map(str::trim) {
        let separator = match line {
            "" => "\n\n",
            _ if text.ends_with('\n') || text.is_empty() => "",
            _ if line.starts_with("* ") => "\n",
            _ => " ",
        };
        if separator != "\n\n" || !text.ends_with('\n') {
            text.push_str(separator);
        }
        text.push_str(line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_paragraph_are_joined() {
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
