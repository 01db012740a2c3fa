//! JSON in which each key of an object is given once. Of two, a program that checks a request may
//! read the first, and another that executes it the second.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value as Json};

/// A value without duplicate keys.
#[derive(Debug)]
struct UniqueJson(Json);

struct UniqueJsonVisitor;

/// Reads a value.
///
/// # Errors
///
/// Fails if the text is no JSON, or if an object has a key twice.
pub(super) fn read_unique_json(text: &[u8]) -> serde_json::Result<Json> {
    serde_json::from_slice(text).map(|UniqueJson(value)| value)
}

impl<'de> Deserialize<'de> for UniqueJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueJsonVisitor).map(Self)
    }
}

impl<'de> Visitor<'de> for UniqueJsonVisitor {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(UniqueJson(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("the key {name:?} is given twice")));
            }
            let UniqueJson(value) = access.next_value()?;
            fields.insert(name, value);
        }
        Ok(Json::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_given_once() {
        let text = br#"{"a": [1, -2, 0.5, 18446744073709551615], "b": {"a": "x\n", "": null}}"#;
        let value = json!({"a": [1, -2, 0.5, u64::MAX], "b": {"a": "x\n", "": null}});
        assert_eq!(read_unique_json(text).unwrap(), value);

        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "\u0061": 2}}]"#] {
            let error = read_unique_json(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("the key \"a\" is given twice at line 1"), "{error}");
        }
        for text in ["", "{", "{} x", "{\"a\": 1e999}"] {
            assert!(read_unique_json(text.as_bytes()).is_err(), "{text}");
        }
    }
}
