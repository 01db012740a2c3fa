//! Decodes response bodies to text.

use encoding_rs::{Encoding, UTF_8};

/// Start of a page in which a declaration of its encoding is searched, as in browsers.
const CHARSET_PRESCAN_BYTES: usize = 1024;

/// Decodes a body. Uses the encoding of a byte order mark, that of the content type, or UTF-8. In a
/// body declared as text, invalid bytes become U+FFFD. `is_cut` says that the body was cut at the
/// limit.
///
/// # Errors
///
/// If the body is not text.
pub(super) fn decode(body: Vec<u8>, content_type: &str, is_cut: bool) -> Result<String, ()> {
    if Encoding::for_bom(&body).is_some() {
        return Ok(UTF_8.decode(&body).0.into_owned());
    }

    let mut encoding = charset(content_type);
    if encoding.is_none() && is_html(content_type) {
        let head = body.get(..CHARSET_PRESCAN_BYTES).unwrap_or(&body);
        encoding = charset(&String::from_utf8_lossy(head));
    }
    if let Some(encoding) = encoding.filter(|encoding| *encoding != UTF_8) {
        return Ok(encoding.decode_without_bom_handling(&body).0.into_owned());
    }
    match String::from_utf8(body) {
        Ok(text) => Ok(text),
        Err(error) => {
            let utf8_error = error.utf8_error();
            let valid = utf8_error.valid_up_to();
            let body = error.into_bytes();
            // The cut may lie within a character.
            let is_valid_until_cut = is_cut && utf8_error.error_len().is_none();
            match body.get(..valid) {
                Some(valid) if is_valid_until_cut => {
                    Ok(String::from_utf8_lossy(valid).into_owned())
                }
                _ if is_text(content_type) => Ok(String::from_utf8_lossy(&body).into_owned()),
                _ => Err(()),
            }
        }
    }
}

pub(super) fn is_html(content_type: &str) -> bool {
    matches!(media_type(content_type).as_str(), "text/html" | "application/xhtml+xml")
}

/// Truncates a text to `max_bytes`. Returns it, and whether it was longer.
pub(super) fn truncate(mut text: String, max_bytes: usize) -> (String, bool) {
    let is_cut = text.len() > max_bytes;
    if is_cut {
        text.truncate(text.floor_char_boundary(max_bytes));
    }
    (text, is_cut)
}

/// Whether a content type declares text.
fn is_text(content_type: &str) -> bool {
    let essence = media_type(content_type);
    essence.starts_with("text/")
        || essence.ends_with("+xml")
        || essence.ends_with("+json")
        || matches!(
            essence.as_str(),
            "application/json" | "application/xml" | "application/javascript"
        )
}

/// Returns the content type without parameters, in lower case.
fn media_type(content_type: &str) -> String {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// Returns the encoding that `charset=` names in a text. `None` for an unknown one.
fn charset(text: &str) -> Option<&'static Encoding> {
    let lower = text.to_ascii_lowercase();
    let (_, label) = lower.split_once("charset=")?;
    let label = label.trim_start_matches(['"', '\'', ' ']);
    let ends_label = |letter: char| matches!(letter, '"' | '\'' | ';' | ' ' | '>' | '/');
    Encoding::for_label(label.split(ends_label).next()?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_decoded_by_their_encoding() {
        for (body, content_type, text) in [
            (&b"gr\xc3\xbcn"[..], "text/plain", Ok("grün")),
            (b"gr\xfcn", "text/plain; charset=ISO-8859-1", Ok("grün")),
            (b"gr\xfcn", "text/plain;charset=\"latin1\"", Ok("grün")),
            (b"gr\xfcn", "text/plain", Ok("gr\u{fffd}n")),
            (b"gr\xfcn", "text/plain; charset=nonsense", Ok("gr\u{fffd}n")),
            (b"\xff\xfeg\0r\0", "text/plain", Ok("gr")),
            (b"\xef\xbb\xbfgr", "text/plain; charset=latin1", Ok("gr")),
            (b"<meta charset='latin1'>\xfc", "text/html", Ok("<meta charset='latin1'>ü")),
            (b"plain", "application/octet-stream", Ok("plain")),
            (b"\x89PNG\r\n", "image/png", Err(())),
            (b"\xff", "", Err(())),
            (b"", "image/png", Ok("")),
        ] {
            let decoded = decode(body.to_vec(), content_type, false);
            assert_eq!(decoded, text.map(str::to_owned), "{body:?} {content_type}");
        }
    }

    #[test]
    fn incomplete_last_character_is_omitted() {
        let cut = b"gr\xc3".to_vec();
        assert_eq!(decode(cut.clone(), "", true), Ok("gr".to_owned()));
        assert_eq!(decode(cut, "", false), Err(()));
        assert_eq!(truncate("grün".to_owned(), 3), ("gr".to_owned(), true));
        assert_eq!(truncate("grün".to_owned(), 5), ("grün".to_owned(), false));
    }
}
