//! The tools that Anthropic's models are trained on. The text editor has a row per command.

use super::rows;

rows!("anthropic": bash editor_create editor_insert editor_str_replace editor_view);
