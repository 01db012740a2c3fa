//! A call as it was made.

use std::time::Instant;

use serde_json::{Map, Value as Json};

/// A call by the name of a tool, and what goes with it.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    /// Name of the tool.
    pub(crate) tool: String,
    /// The parameters that texts name: those that are short. Never what may be secret.
    params: Map<String, Json>,
    /// Where commands find the workspace.
    pub(crate) mount_path: String,
    /// When it was made.
    pub(super) since: Instant,
}

/// Longest parameter that a text names.
const LONGEST: usize = 4096;

impl Said {
    /// A call of `tool` with these parameters.
    pub(crate) fn new(tool: &str, params: &Map<String, Json>, mount_path: &str) -> Self {
        let short = params.iter().filter(|(_, value)| match value {
            Json::String(text) => text.len() <= LONGEST,
            Json::Bool(_) | Json::Number(_) => true,
            Json::Null | Json::Array(_) | Json::Object(_) => false,
        });
        Self {
            tool: tool.to_owned(),
            params: short
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            mount_path: mount_path.to_owned(),
            since: Instant::now(),
        }
    }

    /// A text that was given, as far as one can name it.
    pub(crate) fn text(&self, name: &str) -> &str {
        let value = self.params.get(name).and_then(Json::as_str);
        value.unwrap_or_default()
    }

    /// A number that was given, or what it is otherwise.
    pub(crate) fn number(&self, name: &str, otherwise: f64) -> f64 {
        let number = match self.params.get(name) {
            Some(Json::Number(number)) => number.as_f64(),
            Some(Json::String(text)) => text.trim().parse().ok(),
            Some(Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_)) | None => None,
        };
        number.unwrap_or(otherwise)
    }
}
