//! A call as it was made.

use std::{collections::BTreeMap, time::Instant};

use serde_json::{Map, Value as Json};

/// A call by the name of a tool, and what goes with it.
#[derive(Debug, Clone)]
pub(crate) struct DialectInvocation {
    /// Name of the tool.
    pub(crate) tool: String,
    /// The parameters that texts name: those that are short. Never what may be secret.
    params: BTreeMap<String, String>,
    /// Where commands find the workspace.
    pub(crate) mount_path: String,
    /// When it was made.
    pub(super) started: Instant,
}

/// Longest parameter that a text names.
const MAX_NAMED_PARAM_BYTES: usize = 4096;

impl DialectInvocation {
    /// A call of `tool` with these parameters.
    pub(crate) fn new(tool: &str, params: &Map<String, Json>, mount_path: &str) -> Self {
        // Some dialects take a number or a flag where there should be a text.
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

    /// A text that was given, as far as one can name it.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }

    /// A number that was given, or what it is otherwise.
    pub(crate) fn number(&self, name: &str, otherwise: f64) -> f64 {
        let number = self.params.get(name);
        number.and_then(|text| text.trim().parse().ok()).unwrap_or(otherwise)
    }
}
