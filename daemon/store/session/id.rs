//! Session ids.

/// 1 to 64 letters, digits, `.`, `_` and `-`, the first of them no dot. It names a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId(String);

impl SessionId {
    /// Returns `None` if `text` is not a valid id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let valid =
            (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(allowed);
        valid.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for SessionId {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_name_other_directories() {
        for good in ["default", "a", "A-1_b.c", &"x".repeat(64)] {
            assert!(SessionId::parse(good).is_some(), "{good}");
        }
        for bad in ["", ".", "..", ".x", "a/b", "a\0b", "ä", "a b", &"x".repeat(65)] {
            assert!(SessionId::parse(bad).is_none(), "{bad:?}");
        }
    }
}
