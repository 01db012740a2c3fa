//! The tools that Anthropic's models are trained on; the text editor by its commands.

use super::rows;

rows!("anthropic": bash editor_create editor_insert editor_str_replace editor_view);
