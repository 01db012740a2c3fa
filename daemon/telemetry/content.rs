//! How much content of calls the spans have (`--capture-content`).

use opentelemetry::{Array, StringValue, Value};

/// Largest captured value with [`ContentCapture::Truncated`].
const MAX_TRUNCATED_BYTES: usize = 4 << 10;
/// Largest captured value with [`ContentCapture::Full`]. Collectors accept messages of 4 MiB by
/// default, and a message has the spans of many calls.
const MAX_FULL_BYTES: usize = 64 << 10;

/// Whether spans have the arguments, the results and the command lines of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ContentCapture {
    #[default]
    Off,
    Truncated,
    Full,
}

impl ContentCapture {
    /// Largest captured value. `None` if nothing is captured.
    pub(crate) fn max_bytes(self) -> Option<usize> {
        match self {
            Self::Off => None,
            Self::Truncated => Some(MAX_TRUNCATED_BYTES),
            Self::Full => Some(MAX_FULL_BYTES),
        }
    }
}

/// An attribute with a list of texts that have at most `max_bytes` together. A text that is cut says
/// how many bytes follow; later ones are counted.
pub(crate) fn truncated_list(texts: &[String], max_bytes: usize) -> Value {
    let mut rest = max_bytes;
    let mut values: Vec<StringValue> = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        if text.len() <= rest {
            rest -= text.len();
            values.push(text.clone().into());
            continue;
        }
        let end = text.floor_char_boundary(rest);
        let start = text.get(..end).unwrap_or_default();
        values.push(format!("{start} … ({} bytes more)", text.len() - end).into());
        let omitted = texts.len() - index - 1;
        if omitted > 0 {
            values.push(format!("… ({omitted} arguments more)").into());
        }
        break;
    }
    Value::Array(Array::String(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_lists_say_so() {
        let texts = ["sh", "-c", "\u{e9}\u{e9}", "x"].map(str::to_owned);
        let list = |max_bytes| truncated_list(&texts, max_bytes).to_string();
        assert_eq!(list(9), "[\"sh\",\"-c\",\"éé\",\"x\"]");
        assert_eq!(list(7), "[\"sh\",\"-c\",\"é … (2 bytes more)\",\"… (1 arguments more)\"]");
        assert_eq!(list(0), "[\" … (2 bytes more)\",\"… (3 arguments more)\"]");
    }
}
