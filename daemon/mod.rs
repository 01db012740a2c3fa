//! The daemon.

mod error;
mod sandbox;
mod sys;
mod task;
