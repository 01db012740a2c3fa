//! Bodies as text.

use encoding_rs::{Encoding, UTF_8};

/// Bytes at the beginning of a page in which it may say how its characters are encoded, as in browsers.
const CHARSET_PRESCAN_BYTES: usize = 1024;

/// The text that a body is, if it is one. Its encoding is that of a byte order mark, that which its type names,
/// or UTF-8; of what calls itself a text, bytes that do not belong there are U+FFFD. `is_cut` says that more would
/// come.
pub(super) fn decode(body: Vec<u8>, content_type: &str, is_cut: bool) -> Result<String, ()> {
    if Encoding::for_bom(&body).is_some() {
        return Ok(UTF_8.decode(&body).0.into_owned());
    }
    let mut named = charset(content_type);
    if named.is_none() && is_html(content_type) {
        let head = body.get(..CHARSET_PRESCAN_BYTES).unwrap_or(&body);
        named = charset(&String::from_utf8_lossy(head));
    }
    if let Some(encoding) = named.filter(|encoding| *encoding != UTF_8) {
        return Ok(encoding.decode_without_bom_handling(&body).0.into_owned());
    }
    match String::from_utf8(body) {
        Ok(text) => Ok(text),
        Err(error) => {
            let broken = error.utf8_error();
            let valid = broken.valid_up_to();
            let body = error.into_bytes();
            // A character may be cut with the body.
            let is_whole = is_cut && broken.error_len().is_none();
            match body.get(..valid) {
                Some(valid) if is_whole => Ok(String::from_utf8_lossy(valid).into_owned()),
                _ if is_text(content_type) => Ok(String::from_utf8_lossy(&body).into_owned()),
                _ => Err(()),
            }
        }
    }
}

/// Whether content is HTML.
pub(super) fn is_html(content_type: &str) -> bool {
    matches!(media_type(content_type).as_str(), "text/html" | "application/xhtml+xml")
}

/// The beginning of a text, in so many bytes; and whether there is more.
pub(super) fn truncate(mut text: String, most: usize) -> (String, bool) {
    let is_long = text.len() > most;
    if is_long {
        text.truncate(text.floor_char_boundary(most));
    }
    (text, is_long)
}

/// Whether a type is one of texts.
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

/// The type without its parameters.
fn media_type(content_type: &str) -> String {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// The encoding that `charset=` names in a text, if it is known.
fn charset(text: &str) -> Option<&'static Encoding> {
    let lower = text.to_ascii_lowercase();
    let (_, label) = lower.split_once("charset=")?;
    let label = label.trim_start_matches(['"', '\'', ' ']);
    let end = |letter: char| matches!(letter, '"' | '\'' | ';' | ' ' | '>' | '/');
    Encoding::for_label(label.split(end).next()?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_in_their_encoding() {
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
            let read = decode(body.to_vec(), content_type, false);
            assert_eq!(read, text.map(str::to_owned), "{body:?} {content_type}");
        }
    }

    #[test]
    fn a_character_that_was_cut_is_left_out() {
        let cut = b"gr\xc3".to_vec();
        assert_eq!(decode(cut.clone(), "", true), Ok("gr".to_owned()));
        assert_eq!(decode(cut, "", false), Err(()));
        assert_eq!(truncate("grün".to_owned(), 3), ("gr".to_owned(), true));
        assert_eq!(truncate("grün".to_owned(), 5), ("grün".to_owned(), false));
    }
}
