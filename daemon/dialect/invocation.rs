//! A call by tool name, with the parameters that response texts may quote.

use std::{collections::BTreeMap, time::Instant};

use serde_json::{Map, Value as Json};

/// A call by tool name.
#[derive(Debug, Clone)]
pub(crate) struct DialectInvocation {
    pub(crate) tool: String,
    /// Short parameters, for response texts to quote. Contains no secrets.
    params: BTreeMap<String, String>,
    /// Path of the workspace as commands see it.
    pub(crate) mount_path: String,
    /// Time of the call.
    pub(super) started: Instant,
}

/// Longest parameter that response texts quote.
const MAX_NAMED_PARAM_BYTES: usize = 4096;

impl DialectInvocation {
    pub(crate) fn new(tool: &str, params: &Map<String, Json>, mount_path: &str) -> Self {
        // Some dialects accept a number or a flag in place of a string.
        let short = params.iter().filter_map(|(name, value)| match value {
            Json::String(text) if text.len() <= MAX_NAMED_PARAM_BYTES => {
                Some((name.clone(), text.clone()))
            }
            Json::Bool(_) | Json::Number(_) => Some((name.clone(), value.to_string())),
            Json::String(_) | Json::Null | Json::Array(_) | Json::Object(_) => None,
        });

        Self {
            tool: tool.to_owned(),
            params: short.collect(),
            mount_path: mount_path.to_owned(),
            started: Instant::now(),
        }
    }

    /// A parameter as text; empty if it is missing or too long.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }

    /// A parameter as a number, or `default`.
    pub(crate) fn number(&self, name: &str, default: f64) -> f64 {
        let number = self.params.get(name);
        number.and_then(|text| text.trim().parse().ok()).unwrap_or(default)
    }
}
