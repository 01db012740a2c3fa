//! The tools that OpenAI's models are trained on.

use super::rows;

rows!("openai": apply_patch shell);
